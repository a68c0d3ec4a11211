# Toolchain file: Clang of the Python package `ziglang`, with the C library of an old Linux or macOS, so
# that one library serves every Linux from 2018 on, and every macOS from 11 on. It also builds for
# another system or architecture than this one.
#   cmake -S native -B build/wheel -DCMAKE_TOOLCHAIN_FILE=native/zig.cmake
# Read from the environment, since CMake reads this file again for each of its trials:
#   VOXAX_ZIG: path of the program `zig`; VOXAX_TARGET: as Zig names it, such as
#   x86_64-linux-gnu.2.28 or aarch64-macos.11.0.
if("$ENV{VOXAX_TARGET}" MATCHES "-macos")
  set(CMAKE_SYSTEM_NAME Darwin)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "$ENV{VOXAX_TARGET}")
# The C++ library is linked statically: none of the machine is needed, or met in the process.
set(CMAKE_CXX_COMPILER "$ENV{VOXAX_ZIG};c++;-target;$ENV{VOXAX_TARGET}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s")
