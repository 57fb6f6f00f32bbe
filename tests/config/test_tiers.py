"""KV tiers: texts of the flag, mappings of a file, LMCache's environment."""

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import EngineConfig, Raw, TierConfig, TiersConfig, gather, resolve
from penstock.config.tiers import Tier, object_options
from penstock.core import InvalidValueError, PenstockError

GIB = 2**30
EXAMPLE = """\
model: smollm2
kv-tier:
  - ram: 16GiB
    quota: 0.25
  - disk: /var/kv
    size: 200GiB
    daily-writes: 1TB
    quota: 0.5
  - redis: redis://cache:6379/0       # or rediss://, unix://
    ttl: 86400
  - object: s3://bucket/prefix
    region: eu-central-1
  - disk:/mnt/shared,1TiB
kv-chunk-tokens: 512
"""
EXAMPLE_TIERS = (
    TierConfig("ram", 16 * GIB, quota=0.25),
    TierConfig("disk", 200 * GIB, path="/var/kv", daily_write_bytes=10**12, quota=0.5),
    TierConfig("redis", url="redis://cache:6379/0", ttl_seconds=86400),
    TierConfig("object", url="s3://bucket/prefix", options=(("region", "eu-central-1"),)),
    TierConfig("disk", 2**40, path="/mnt/shared"),
)


def from_text(text: str, directory: Path) -> TiersConfig:
    file = directory / "penstock.yaml"
    file.write_text(text, encoding="utf-8")
    engine = resolve(gather({}, str(file), {}), "m", "n").engine
    assert EngineConfig.from_json(engine.to_json()) == engine
    return engine.tiers


def from_flags(*texts: str) -> tuple[TierConfig, ...]:
    return resolve({"kv_tier": Raw("--kv-tier", texts)}, "m", "n").engine.tiers.tiers


def test_a_file_has_mappings_and_texts_side_by_side(tmp_path: Path) -> None:
    assert from_text(EXAMPLE, tmp_path) == TiersConfig(EXAMPLE_TIERS, 512)


def test_flags_say_the_same_as_the_file() -> None:
    disk = "disk:/var/kv,200GiB,daily-writes=1TB,quota=0.5"
    redis, store = "redis://cache:6379/0,ttl=86400", "s3://bucket/prefix,region=eu-central-1"
    assert (
        from_flags("ram:16GiB,quota=0.25", disk, redis, store, "disk:/mnt/shared,1TiB")
        == EXAMPLE_TIERS
    )


def test_the_environment_separates_tiers_by_spaces() -> None:
    raw = gather({}, None, {"PENSTOCK_KV_TIER": "ram:1GiB disk:/kv,2GiB,quota=0.5"})
    tiers = resolve(raw, "m", "n").engine.tiers.tiers
    assert tiers == (TierConfig("ram", GIB), TierConfig("disk", 2 * GIB, path="/kv", quota=0.5))


def test_the_example_of_the_documentation_is_one(repository: Path, tmp_path: Path) -> None:
    text = (repository / "docs/configuration.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    tiers = from_text(example, tmp_path).tiers
    assert [tier.kind for tier in tiers] == ["ram", "disk", "redis", "object"]


@pytest.mark.parametrize(
    "text", ["kv-tier: {ram: 1GiB}", "kv_tier: 'ram:1GiB'", "kv-tier: [ram: 1GiB]"]
)
def test_one_tier_needs_no_list(text: str, tmp_path: Path) -> None:
    assert from_text(text, tmp_path).tiers == (TierConfig("ram", GIB),)


class Written(NamedTuple):
    tier: TierConfig
    words: dict[str, str]


SIZES = st.builds(
    lambda count, unit: (count * unit[1], f"{count}{unit[0]}"),
    st.integers(1, 1000),
    st.sampled_from([("MiB", 2**20), ("MB", 10**6), ("G", 10**9), ("GiB", GIB)]),
)
SHARES = st.floats(0, 1, exclude_min=True).map(lambda share: (share, repr(share)))
TEXTS = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters=",="), min_size=1, max_size=12
)


@st.composite
def tiers(draw: st.DrawFn, paths: st.SearchStrategy[str] = TEXTS) -> Written:
    """A tier and what a mapping says of it; the kind comes first and a disk's size second."""
    kind = draw(st.sampled_from(["ram", "disk", "redis", "object"]))
    size, written = draw(SIZES)
    if kind == "ram":
        tier, words = TierConfig(kind, size), {kind: written}
    elif kind == "disk":
        path = draw(paths)
        tier, words = TierConfig(kind, size, path=path), {kind: path, "size": written}
    else:
        scheme = draw(
            st.sampled_from({"redis": ["redis", "rediss", "unix"], "object": ["s3", "gs"]}[kind])
        )
        url = f"{scheme}://{draw(TEXTS)}"
        tier, words = TierConfig(kind, url=url), {kind: url}
    more = {
        "ram": ["quota"],
        "disk": ["quota", "daily-writes", "gds"],
        "redis": ["ttl"],
        "object": ["x"],
    }
    for name in draw(st.lists(st.sampled_from(more[kind]), unique=True)):
        tier = draw(option(tier, words, name))
    return Written(tier, words)


@st.composite
def option(draw: st.DrawFn, tier: TierConfig, words: dict[str, str], name: str) -> TierConfig:
    if name == "quota":
        tier_quota, words["quota"] = draw(SHARES)
        return replace(tier, quota=tier_quota)
    if name == "daily-writes":
        most, words[draw(st.sampled_from(["daily-writes", "daily_writes"]))] = draw(SIZES)
        return replace(tier, daily_write_bytes=most)
    if name == "gds":
        words["gds"] = draw(st.sampled_from(["true", "on", "false"]))
        return replace(tier, gds=words["gds"] != "false")
    if name == "ttl":
        seconds = draw(st.integers(1, 10**9))
        words["ttl"] = str(seconds)
        return replace(tier, ttl_seconds=seconds)
    words["allow-http"] = words["secret_access_key"] = value = draw(TEXTS)
    return replace(tier, options=(("allow_http", value), ("secret_access_key", value)))


def flag(words: dict[str, str]) -> str:
    (kind, head), *rest = words.items()
    size = [words["size"]] if kind == "disk" else []
    options = [f"{name}={text}" for name, text in rest if name != "size"]
    return ",".join([head if kind in ("redis", "object") else f"{kind}:{head}", *size, *options])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiers")


@given(written=tiers(), data=st.data())
def test_a_mapping_says_what_the_flag_says(
    directory: Path, written: Written, data: st.DataObject
) -> None:
    assert from_flags(flag(written.words)) == (written.tier,)
    shuffled = dict(data.draw(st.permutations(list(written.words.items()))))
    text = yaml.safe_dump(
        {"kv-tier": [shuffled]}, sort_keys=False, allow_unicode=data.draw(st.booleans())
    )
    (tier,) = from_text(text, directory).tiers
    options = sorted(tier.options)
    assert replace(tier, options=tuple(options)) == written.tier


@given(tiers(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)))
def test_a_mapping_takes_any_text_as_a_path(directory: Path, written: Written) -> None:
    (tier,) = from_text(yaml.safe_dump({"kv-tier": [written.words]}), directory).tiers
    assert replace(tier, options=tuple(sorted(tier.options))) == written.tier


@given(
    st.one_of(
        st.text(),
        st.lists(
            st.sampled_from(
                [
                    "ram:",
                    "disk:",
                    "redis://",
                    "s3://",
                    "1GiB",
                    ",",
                    "=",
                    "quota",
                    "0.5",
                    "/",
                    "9" * 400,
                ]
            )
        ).map("".join),
    )
)
def test_any_text_is_a_tier_or_refused(text: str) -> None:
    try:
        assert isinstance(Tier().parse(text), TierConfig)
    except ValueError:
        return


BYTES = r"expected bytes in 65536\.\.1125899906842624, also as 512M or 1GiB"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tape:1GiB", r" is 'tape:1GiB', expected ram:SIZE\[,quota=SHARE\], disk:PATH,SIZE"),
        ("", " is '', expected ram:SIZE"),
        ("ram:much", f" ram is 'much', {BYTES}"),
        ("ram:1GiB,quota=0", " ram: quota is '0', expected a share above 0 and at most 1"),
        ("ram:1GiB,quota=nan", " ram: quota is 'nan', expected a share"),
        ("ram:1GiB,quota=1,quota=1", " has quota twice"),
        ("ram:1GiB,ttl=1", " ram: unknown option 'ttl'; there is ram, quota"),
        ("ram:1GiB,disk=/a", " is ram and disk at once; each tier is an item of its own"),
        ("disk:/var/kv", f" disk: size is missing, {BYTES}"),
        ("disk:/var/kv,quota=1", f" disk: size is missing, {BYTES}"),
        ("disk:,1GiB", " disk is '', expected a text that is not empty"),
        (
            "disk:/a,1GiB,2GiB",
            " disk: unknown option '2GiB'; there is disk, size, daily-writes, quota",
        ),
        (
            "redis:cache",
            " redis is 'redis:cache', expected a URL with redis://, rediss://, unix://",
        ),
        ("redis://cache,ttl=0", r" redis: ttl is '0', expected an integer in 1\.\."),
        ("s3:bucket", " object is 's3:bucket', expected a URL with s3://, gs://"),
        ("s3://bucket,region", " object: option 'region' is '', expected a name with a value"),
        ("s3://bucket,=eu", " object: option '' is 'eu', expected a name with a value"),
    ],
)
def test_a_wrong_tier_is_refused_with_what_is_wrong_in_it(text: str, fault: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^--kv-tier{fault}"):
        from_flags(text)
    with pytest.raises(InvalidValueError, match=f"^PENSTOCK_KV_TIER{fault}"):
        resolve(gather({}, None, {"PENSTOCK_KV_TIER": text}), "m", "n")


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("ram: 16GiB\nquota: 2", 3, "ram: quota is '2', expected a share above 0 and at most 1"),
        ("disk: /var/kv\nquota: 0.5", 2, f"disk: size is missing, {BYTES}"),
        (
            "disk: /var/kv\nsise: 1GiB",
            3,
            "disk: unknown option 'sise'; there is disk, size, daily-writes",
        ),
        ("disk: /var/kv\nsize: 1\nquota: 1", 3, f"disk: size is '1', {BYTES}"),
        (
            "ram: 1GiB\ndisk: /var/kv\nsize: 1GiB",
            3,
            "is ram and disk at once; each tier is an item of its own",
        ),
        (
            "size: 1GiB\nquota: 1",
            2,
            "says of no tier what it is, expected one of ram, disk, redis, object",
        ),
        ("redis: s3://user:secret@h", 2, "redis is 's3://h', expected a URL with redis://"),
        ("object: redis://h/0", 2, "object is 'redis://h/0', expected a URL with s3://"),
        (
            "object: s3://h\nregion:",
            3,
            "object: option 'region' is '', expected a name with a value",
        ),
    ],
)
def test_a_wrong_mapping_is_refused_with_file_line_and_option(
    text: str, line: int, fault: str, tmp_path: Path
) -> None:
    item = "\n".join(f"  {'  ' if at else '- '}{said}" for at, said in enumerate(text.splitlines()))
    with pytest.raises(InvalidValueError, match=rf"penstock\.yaml:{line}: kv-tier {fault}"):
        from_text(f"kv-tier:\n{item}\n", tmp_path)


def test_options_of_a_mapping_stand_there_once(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"yaml:3: daily_writes stands on line 2 already"):
        from_text("kv-tier:\n- daily-writes: 1TB\n  daily_writes: 1TB\n", tmp_path)


def test_tiers_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(PenstockError, match="--kv-tier disk:/a is given twice"):
        from_flags("disk:/a,1GiB", "disk:/a,2GiB")
    with pytest.raises(PenstockError, match="--kv-tier ram comes first"):
        from_flags("disk:/a,1GiB", "ram:1GiB")
    raw = {"kv_tier": Raw("", ("ram:1GiB",)), "kv_chunk_tokens": Raw("", ("40",))}
    with pytest.raises(
        InvalidValueError, match=r"--kv-chunk-tokens is 40, expected a multiple of --block-size"
    ):
        resolve(raw, "m", "n")


def test_a_password_is_in_no_name() -> None:
    (tier,) = from_flags("redis://user:secret@cache:6379/0")
    assert (tier.name, tier.url) == ("redis://cache:6379/0", "redis://user:secret@cache:6379/0")


@pytest.mark.parametrize("kind", ["redis+cluster", "rediss+sentinel"])
def test_a_url_with_several_hosts_has_commas(kind: str) -> None:
    url = f"{kind}://:se,cret@a:1,b/cache?ssl_ca_certs=/ca.pem"
    (tier,) = from_flags(f"{url},ttl=60")
    assert tier == TierConfig("redis", url=url, ttl_seconds=60)
    assert tier.name == f"{kind}://a:1,b/cache?ssl_ca_certs=/ca.pem"


def test_object_stores_take_credentials_from_the_environment_under_those_of_the_tier() -> None:
    environ = {"AWS_REGION": "eu", "AWS_ACCESS_KEY_ID": "id", "AWS_PROFILE": "p"}
    (s3,) = from_flags("s3://bucket,aws_region=us,timeout-s=5")
    found = {"aws_region": "us", "aws_access_key_id": "id", "timeout_s": "5"}
    assert object_options(s3, environ) == found
    (gs,) = from_flags("gs://bucket")
    assert object_options(gs, environ) == {}


def test_lmcaches_environment_is_understood_where_nothing_else_is_said(tmp_path: Path) -> None:
    environ = {
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "1.5",
        "LMCACHE_LOCAL_DISK": "file:///kv/",
        "LMCACHE_MAX_LOCAL_DISK_SIZE": "2",
        "LMCACHE_REMOTE_URL": "redis://cache:6379",
        "LMCACHE_CHUNK_SIZE": "64",
    }
    section = resolve(gather({}, None, environ), "m", "n").engine.tiers
    ram, disk = TierConfig("ram", 3 * GIB // 2), TierConfig("disk", 2 * GIB, path="/kv/")
    assert section == TiersConfig((ram, disk, TierConfig("redis", url="redis://cache:6379")), 64)
    file = tmp_path / "penstock.yaml"
    file.write_text("kv-tier: [ram: 1GiB]\n")
    assert resolve(gather({}, str(file), environ), "m", "n").engine.tiers.tiers == (
        TierConfig("ram", GIB),
    )
