"""Third-party data sets: from a mirror, the user's cache or their pinned address, and never without a check."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from allocator import __version__, catalog
from allocator.errors import DataError
from allocator.outputs import write_folder
from allocator.units import one_line

MIRROR = "ALLOCATOR_DATA_MIRROR"  # a folder that holds <set>/<file>
CACHE = "ALLOCATOR_CACHE"  # where downloads are kept; a folder of the same form
TIMEOUT_S = 30.0  # how long a server may say nothing


@dataclass(frozen=True)
class File:
    """A file whose size and hash are those of the registry; `origin` is mirror, cache or download."""

    file: str
    path: Path
    bytes: int
    sha256: str
    origin: str


@dataclass(frozen=True)
class DataSet:
    """A data set that is there, with what the registry says about it."""

    name: str
    about: Mapping[str, Any]
    files: tuple[File, ...]

    @property
    def licence(self) -> str:
        """The licence in words."""
        stated = self.about["licence"]
        return "none: the repository states none, so use and cite, do not pass on" if stated == "none" else stated

    def copied_to(self, folder: Path) -> "DataSet":
        """Copy the files into a folder, all or none, and say where they are now."""
        write_folder(folder, {file.file: file.path.read_bytes() for file in self.files})
        return replace(self, files=tuple(replace(file, path=folder / file.file) for file in self.files))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        about = self.about
        unlicensed = {"code": "no_licence", "path": self.name, "value": None, "message": self.licence}
        return {
            "schema": "allocator.data/1",
            "name": self.name,
            **{key: about[key] for key in ("title", "licence", "citation", "notes")},
            "rows": [asdict(file) | {"path": str(file.path)} for file in self.files],
            "warnings": [unlicensed] if about["licence"] == "none" else [],
            "provenance": {"allocator": __version__, "repository": about["repository"], "commit": about["commit"]},
        }

    def __str__(self) -> str:
        """Files with size, origin and path; licence, citation and notes below."""
        width = max((len(file.file) for file in self.files), default=0)
        return "\n".join(
            [
                f"{self.name}: {self.about['title']}",
                *(
                    f"  {file.file:<{width}}  {file.bytes:>11,} bytes  {file.origin:<8}  {one_line(str(file.path))}"
                    for file in self.files
                ),
                f"licence: {self.licence}",
                f"cite:    {self.about['citation']}",
                f"notes:   {self.about['notes']}",
            ]
        )


def fetch(name: str, *, only: Sequence[str] | None = None) -> dict[str, Path]:
    """The verified files of a third-party data set by name, downloaded where neither mirror nor cache has them."""
    return {file.file: file.path for file in pull(name, only=only).files}


def pull(name: str, *, only: Sequence[str] | None = None) -> DataSet:
    """A third-party data set, or some of its files: where they are, where they came from, what to cite."""
    record = catalog.find("data", name)
    if record.fields["access"] == "shipped":
        see = f"allocator catalog data {record.name}"
        raise DataError(f"{record.name}: comes with the package and needs no download; see: {see}")
    about = catalog.registry()[record.name]
    files: Mapping[str, Mapping[str, Any]] = about["files"]
    for file in only or ():
        if file not in files:
            raise DataError(f"{record.name}: {file!r} is none of its files, which are {', '.join(files)}")
    for part in (record.name, *files):
        if part in ("", ".", "..") or set(part) & set("/\\:\0"):
            raise DataError(f"registry: {part!r} is no plain name, as a data set and a file must have")
    wanted = files if only is None else dict.fromkeys(only)
    return DataSet(record.name, about, tuple(_file(record.name, file, files[file]) for file in wanted))


def _file(name: str, file: str, about: Mapping[str, Any]) -> File:
    mirrored = _mirror(name, file)
    if mirrored is not None:
        if fault := _fault(mirrored, about):
            raise DataError(f"{name}: {file}: {mirrored} in the mirror {fault}; replace it, or unset {MIRROR}")
        return File(file, mirrored, about["bytes"], about["sha256"], "mirror")
    cached = _cache() / name / file
    held = not _fault(cached, about)
    if not held:
        _download(name, about, cached)
    return File(file, cached, about["bytes"], about["sha256"], "cache" if held else "download")


def _mirror(name: str, file: str) -> Path | None:
    """The mirror's file, if there is a mirror and it has one."""
    folder = os.environ.get(MIRROR)
    if not folder:
        return None
    if not os.path.isdir(folder):
        raise DataError(f"{MIRROR}: {folder} is no folder")
    path = Path(folder).absolute() / name / file
    return path if os.path.lexists(path) else None


def _cache() -> Path:
    if folder := os.environ.get(CACHE):
        return Path(os.path.expanduser(folder)).absolute()
    import pooch

    return Path(pooch.os_cache("allocator"))


def _fault(path: Path, about: Mapping[str, Any]) -> str | None:
    """What keeps a file from being the registry's, if anything."""
    try:
        size = path.stat().st_size
        if size != about["bytes"]:
            return f"has {size:,} bytes, must have {about['bytes']:,}"
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if found == about["sha256"] else f"has sha256 {found[:12]}…, must have {about['sha256'][:12]}…"


def _download(name: str, about: Mapping[str, Any], target: Path) -> None:
    """Download a file beside its place, check it, and rename it; whatever fails, nothing is left of it."""
    import pooch
    import requests

    def checked(url: str, output: Any, _: Any) -> None:
        # pooch's own downloader would leave the connection open after an error, and take a body without end.
        with requests.get(url, stream=True, timeout=TIMEOUT_S) as response, open(output, "wb") as file:
            response.raise_for_status()
            for chunk in response.iter_content(1 << 16):
                file.write(chunk)
                if file.tell() > about["bytes"]:
                    break
        if fault := _fault(Path(output), about):
            raise DataError(f"{what} {fault}: it is not what was pinned, and was not kept; {advice}")

    what = f"{name}: {target.name}: the download from {about['url']}"
    advice = f"try again later, or name a folder that holds {name}/{target.name} in {MIRROR}"
    made = [folder for folder in (target.parent, *target.parents[1:]) if not os.path.lexists(folder)]
    downloader: Any = checked  # pooch's type wants a parameter that pooch does not pass
    logger = pooch.get_logger()
    level, done = logger.level, False
    logger.setLevel("ERROR")  # it tells of each download, which is the command's to tell
    try:
        pooch.retrieve(about["url"], f"sha256:{about['sha256']}", target.name, target.parent, downloader=downloader)
        done = True
    except requests.RequestException as error:
        raise DataError(f"{what} failed: {_reason(error)}; {advice}") from None
    except OSError as error:
        place = f"{target.parent} cannot be written: {error.strerror or 'permission denied'}"
        raise DataError(f"{name}: {target.name}: the cache {place}; name another folder in {CACHE}") from None
    finally:
        logger.setLevel(level)
        for folder in () if done else made:  # only those made here, and only while empty
            if os.path.isdir(folder) and not os.listdir(folder):
                folder.rmdir()


def _reason(error: Exception) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}".rstrip()
    reasons = {
        requests.exceptions.ChunkedEncodingError: "the connection broke off",
        requests.exceptions.SSLError: "the server's certificate does not hold",
        requests.exceptions.ProxyError: "the proxy does not answer",
        requests.exceptions.Timeout: "no answer in time",
        requests.exceptions.ConnectionError: "no connection",
    }
    return next((text for kind, text in reasons.items() if isinstance(error, kind)), type(error).__name__)
