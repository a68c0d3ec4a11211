# Toolchain file: Clang with the C library of an old Linux, from the Python package `ziglang`, so that
# one library serves every Linux from 2018 on. Also builds for another architecture than this one.
#   cmake -S native -B build/wheel -DCMAKE_TOOLCHAIN_FILE=native/zig.cmake
# Read from the environment, since CMake reads this file again for each of its trials:
#   VOXAX_ZIG: path of the program `zig`; VOXAX_ARCH: x86_64 or aarch64.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{VOXAX_ARCH})
# The C++ library is linked statically: none of the machine is needed, or met in the process.
set(CMAKE_CXX_COMPILER "$ENV{VOXAX_ZIG};c++;-target;$ENV{VOXAX_ARCH}-linux-gnu.2.28")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s")
