"""What package managers come for, as files of a site: an index for pip, registries for npm and cargo, a proxy for Go, a repository for
Maven's clients; each holds one package with the same data."""

import base64
import hashlib
import io
import json
import os
import tarfile
import zipfile


def write(path, data):
    """A file of the site's."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())


def zipped(files):
    """An archive of files by name."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as package:
        for name, data in files.items():
            package.writestr(name, data)
    return made.getvalue()


def tarred(folder, files):
    """A compressed archive of files by name, all in one folder."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as package:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(data)
            package.addfile(entry, io.BytesIO(data))
    return made.getvalue()


def pip(site, data):
    """`simple`, with the wheel `rf-sample`."""
    at, name = "rf_sample-1.0.dist-info", "rf_sample-1.0-py3-none-any.whl"
    files = {"rf_sample/__init__.py": "", "rf_sample/data": data, f"{at}/METADATA": "Metadata-Version: 2.1\nName: rf-sample\nVersion: 1.0\n",
             f"{at}/WHEEL": "Wheel-Version: 1.0\nGenerator: rf\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    files[f"{at}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{at}/RECORD"])
    write(f"{site}/simple/rf-sample/index.html", f'<!DOCTYPE html><a href="{name}">{name}</a>')
    write(f"{site}/simple/rf-sample/{name}", zipped(files))


def npm(site, data, host):
    """`npm`, with the package `rf-sample`."""
    package = tarred("package", {"package.json": json.dumps({"name": "rf-sample", "version": "1.0.0"}).encode(), "data": data})
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(package).digest()).decode()
    version = {"name": "rf-sample", "version": "1.0.0", "dist": {"tarball": f"https://{host}/npm/rf-sample-1.0.0.tgz", "integrity": integrity}}
    write(f"{site}/npm/rf-sample-1.0.0.tgz", package)
    write(f"{site}/npm/rf-sample", json.dumps({"name": "rf-sample", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}))


def cargo(site, data, host):
    """`cargo`, a sparse index, with the crate `rf-sample`."""
    manifest = b'[package]\nname = "rf-sample"\nversion = "1.0.0"\nedition = "2021"\n'
    crate = tarred("rf-sample-1.0.0", {"Cargo.toml": manifest, "src/lib.rs": b"", "data": data})
    version = {"name": "rf-sample", "vers": "1.0.0", "deps": [], "cksum": hashlib.sha256(crate).hexdigest(), "features": {}, "yanked": False}
    write(f"{site}/cargo/config.json", json.dumps({"dl": f"https://{host}/cargo/crates"}))
    write(f"{site}/cargo/rf/-s/rf-sample", json.dumps(version) + "\n")
    write(f"{site}/cargo/crates/rf-sample/1.0.0/download", crate)


def go(site, data):
    """`go`, a proxy of modules, with `rf.test/sample`."""
    module = b"module rf.test/sample\n"
    at = f"{site}/go/rf.test/sample/@v"
    write(f"{at}/list", "v1.0.0\n")
    write(f"{at}/v1.0.0.info", json.dumps({"Version": "v1.0.0", "Time": "2026-01-01T00:00:00Z"}))
    write(f"{at}/v1.0.0.mod", module)
    write(f"{at}/v1.0.0.zip", zipped({"rf.test/sample@v1.0.0/go.mod": module, "rf.test/sample@v1.0.0/data": data}))


def maven(site, data):
    """`maven`, a repository, with `test.rf:sample`."""
    at = f"{site}/maven/test/rf/sample/1.0/sample-1.0"
    write(f"{at}.jar", data)
    write(f"{at}.pom", '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
                       "<groupId>test.rf</groupId><artifactId>sample</artifactId><version>1.0</version></project>")


def every(site, data, host):
    """All of them, for clients of a host whose root the folder is."""
    pip(site, data)
    npm(site, data, host)
    cargo(site, data, host)
    go(site, data)
    maven(site, data)
