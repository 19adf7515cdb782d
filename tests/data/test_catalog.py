import functools
import hashlib
import http.server
import io
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from classmargin.data import DataError, DataNotFoundError, catalog, list_data, load_data, register
from classmargin.data.catalog import RemoteFile, data_root, download_files, find_info

from .conftest import write_idx_set
from .test_cifar import write_cifar100

NAMED = {
    "fashion-mnist-mini",
    "fashion-mnist",
    "mnist",
    "cifar10",
    "cifar100",
    "imagenet",
    "stanford-cars",
    "oxford-pets",
    "flowers-102",
    "food-101",
    "fgvc-aircraft",
}


def test_the_catalogue_describes_every_named_set():
    infos = {info.name: info for info in list_data()}
    assert set(infos) >= NAMED
    for info in infos.values():
        assert info.classes >= 2
        assert info.title
        assert info.licence
        assert info.homepage.startswith("http")
        assert info.where_to_get


def test_a_new_set_is_one_entry_and_a_taken_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "_CATALOG", dict(catalog._CATALOG))
    entry = replace(find_info("mnist"), name="my-digits", places=("digits",))
    register(entry)
    write_idx_set(tmp_path / "digits", classes=10)
    assert load_data("my-digits", root=tmp_path).num_classes == 10
    with pytest.raises(ValueError, match="already has a data set called 'my-digits'"):
        register(entry)


def test_a_missing_set_says_where_to_get_it_and_where_to_put_it(tmp_path):
    with pytest.raises(DataNotFoundError) as caught:
        load_data("cifar100", root=tmp_path)
    message = str(caught.value)
    assert "https://www.cs.toronto.edu/~kriz/cifar.html" in message
    assert str(tmp_path / "cifar100") in message
    assert "CLASSMARGIN_DATA" in message
    assert "--download" in message
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ValueError)


def test_a_misspelt_name_gets_a_suggestion(tmp_path):
    with pytest.raises(DataNotFoundError, match="did you mean 'cifar100'"):
        load_data("cifar-100", root=tmp_path)


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(DataNotFoundError, match="no file or folder called"):
        load_data(str(tmp_path / "nowhere.npz"))


def test_root_comes_from_argument_then_environment_then_home(tmp_path, monkeypatch):
    assert data_root(tmp_path / "given") == tmp_path / "given"
    monkeypatch.setenv("CLASSMARGIN_DATA", str(tmp_path / "variable"))
    assert data_root() == tmp_path / "variable"
    monkeypatch.delenv("CLASSMARGIN_DATA")
    assert data_root() == Path.home() / ".cache" / "classmargin" / "data"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 0.0}, "fraction"),
        ({"fraction": 1.5}, "fraction"),
        ({"imbalance": 0.5}, "imbalance"),
        ({"validation": 1.0}, "validation"),
        ({"seed": -1}, "seed"),
        ({"image_size": 0}, "image_size"),
    ],
)
def test_arguments_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        load_data("fashion-mnist-mini", **options)


def test_importing_the_package_pulls_in_no_heavy_library():
    heavy = ["PIL", "scipy", "datasets", "pyarrow", "kornia", "pandas", "sklearn"]
    code = f"import sys, classmargin.data; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def server(tmp_path):
    """A web server on this machine that hands out ``tmp_path / "web"``."""
    (tmp_path / "web").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "web"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}/"
        running.shutdown()
        thread.join()


def remote(web: Path, base: str, name: str, members=()) -> RemoteFile:
    digest = hashlib.sha256((web / name).read_bytes()).hexdigest()
    return RemoteFile((base + name,), digest, name, members)


def test_download_fetches_idx_files_once_and_then_reads_them(tmp_path, monkeypatch, server):
    write_idx_set(tmp_path / "web", classes=10, zipped=True)
    names = [path.name for path in (tmp_path / "web").iterdir()]
    files = tuple(remote(tmp_path / "web", server, name) for name in names)
    monkeypatch.setitem(catalog._CATALOG, "mnist", replace(find_info("mnist"), downloads=files))
    root = tmp_path / "root"
    bundle = load_data("mnist", root=root, download=True)
    assert bundle.num_classes == 10
    assert sorted(path.name for path in (root / "mnist").iterdir()) == sorted(names)
    for path in (tmp_path / "web").iterdir():
        path.unlink()
    assert len(load_data("mnist", root=root).train) == len(bundle.train)


def test_a_failed_or_cut_download_can_be_repeated(tmp_path, monkeypatch, server):
    write_idx_set(tmp_path / "web", classes=10, zipped=True)
    names = sorted(path.name for path in (tmp_path / "web").iterdir())
    files = tuple(remote(tmp_path / "web", server, name) for name in names)
    missing = replace(files[1], urls=(server + "missing",))
    for downloads in ((missing, *files[2:]), (files[0], missing)):  # nothing came, then one file of four
        monkeypatch.setitem(catalog._CATALOG, "mnist", replace(find_info("mnist"), downloads=downloads))
        with pytest.raises(DataNotFoundError, match="by hand"):
            load_data("mnist", root=tmp_path / "root", download=True)
        if downloads[0] is missing:
            with pytest.raises(DataNotFoundError, match="is not on this machine"):
                load_data("mnist", root=tmp_path / "root")
    monkeypatch.setitem(catalog._CATALOG, "mnist", replace(find_info("mnist"), downloads=files))
    assert load_data("mnist", root=tmp_path / "root", download=True).num_classes == 10


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_downloaded_idx_files_have_the_names_that_the_reader_looks_for(tmp_path, name):
    write_idx_set(tmp_path, zipped=True)
    files = find_info(name).downloads
    assert {file.target for file in files} == {path.name for path in tmp_path.iterdir()}
    assert all(url.endswith(f"/{file.target}") for file in files for url in file.urls)


def test_without_permission_nothing_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("the network was touched"))
    for name in ("mnist", "fashion-mnist", "cifar10", "cifar100"):
        assert find_info(name).downloads
        with pytest.raises(DataNotFoundError):
            load_data(name, root=tmp_path)


def test_download_unpacks_only_the_named_members_of_an_archive(tmp_path, monkeypatch, server):
    write_cifar100(tmp_path / "made" / "cifar-100-python")
    with tarfile.open(tmp_path / "web" / "c.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "made" / "cifar-100-python", "cifar-100-python")
        tar.addfile(tarfile.TarInfo("../escaped"), io.BytesIO())
    members = find_info("cifar100").downloads[0].members
    files = (remote(tmp_path / "web", server, "c.tar.gz", members),)
    monkeypatch.setitem(catalog._CATALOG, "cifar100", replace(find_info("cifar100"), downloads=files))
    root = tmp_path / "root"
    assert load_data("cifar100", root=root, download=True).num_classes == 100
    found = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    assert found == [f"cifar100/cifar-100-python/{name}" for name in ("meta", "test", "train")]


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path, server):
    (tmp_path / "web" / "a.bin").write_bytes(b"tampered")
    with pytest.raises(DataError, match=r"sha256.*expected 00.*not kept"):
        download_files((RemoteFile((server + "a.bin",), "00", "a.bin"),), tmp_path / "set")
    assert list((tmp_path / "set").iterdir()) == []


def test_the_second_address_is_tried_when_the_first_does_not_answer(tmp_path, server):
    (tmp_path / "web" / "a.bin").write_bytes(b"whole")
    good = remote(tmp_path / "web", server, "a.bin")
    download_files((replace(good, urls=(server + "missing", *good.urls)),), tmp_path / "set")
    assert (tmp_path / "set" / "a.bin").read_bytes() == b"whole"


def test_a_failed_download_names_the_address_and_the_folder(tmp_path, server):
    with pytest.raises(DataNotFoundError, match=r"/missing: HTTP Error 404.*by hand"):
        download_files((RemoteFile((server + "missing",), "00", "a.bin"),), tmp_path / "set")


def test_files_may_come_from_a_local_address(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"whole")
    file = RemoteFile(((tmp_path / "a.bin").as_uri(),), hashlib.sha256(b"whole").hexdigest(), "a.bin")
    download_files((file,), tmp_path / "set")
    assert (tmp_path / "set" / "a.bin").read_bytes() == b"whole"


def test_checksums_and_addresses_of_the_catalogue_are_well_formed():
    files = [file for info in list_data() for file in info.downloads]
    assert len(files) == 10
    for file in files:
        assert len(bytes.fromhex(file.sha256)) == 32
        assert all(url.startswith(("https://", "http://")) for url in file.urls)
