//! The eBPF object inside this binary: its programs, maps and globals, read before anything is loaded.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{DefaultHasher, Hasher},
    io::{self, Read as _},
};

use aya_obj::{EbpfSectionKind, ProgramSection};
use flate2::read::ZlibDecoder;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use ringfence_common::{egress::REWRITERS, enroll::ITERATOR, net::EGRESS};

/// The object as built with this binary, compressed: it is needed once, when the daemon starts.
static OBJECT: &[u8] = include_bytes!(env!("RINGFENCE_EBPF"));

/// The object cannot be understood; only a broken build gives that.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// What was compressed is something else.
    #[error("the eBPF programs inside this binary cannot be unpacked; build it again")]
    Unpack(#[source] io::Error),
    /// Not an eBPF object.
    #[error("the eBPF programs inside this binary cannot be read; build it again")]
    Parse(#[from] aya_obj::ParseError),
    /// Not an ELF file.
    #[error("the eBPF programs inside this binary cannot be read; build it again")]
    Elf(#[from] object::Error),
    /// A program that is not an LSM program.
    #[error("the eBPF program `{0}` inside this binary is not for an LSM hook; build it again")]
    NotLsm(String),
}

/// What a map looks like to those who share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// `BPF_MAP_TYPE_*`.
    pub kind: u32,
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value.
    pub value: u32,
    /// Entries; bytes, for a ring.
    pub entries: u32,
    /// `BPF_F_*`.
    pub flags: u32,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, key, value, entries, flags } = self;
        write!(f, "type {kind}, key {key} bytes, value {value} bytes, {entries} entries, flags {flags:#x}")
    }
}

/// The parsed object.
#[derive(Debug)]
pub(crate) struct Object {
    /// The object file.
    pub bytes: Vec<u8>,
    /// Tells one build from another.
    pub hash: u64,
    /// Every map but the object's own data sections.
    pub(crate) maps: BTreeMap<String, Shape>,
    /// Every LSM program; each is named as its hook.
    pub hooks: BTreeSet<String>,
    /// Read-only globals that the loader has to set, and their sizes.
    pub(crate) globals: BTreeMap<String, u64>,
}

impl Object {
    /// The object inside this binary.
    pub(crate) fn embedded() -> Result<Self, ObjectError> {
        Self::parse(unpacked()?)
    }

    fn parse(bytes: Vec<u8>) -> Result<Self, ObjectError> {
        let parsed = aya_obj::Object::parse(&bytes)?;
        let mut hooks = BTreeSet::new();
        for (name, program) in &parsed.programs {
            match program.section {
                ProgramSection::Lsm { sleepable: false } => _ = hooks.insert(name.clone()),
                ProgramSection::Iter { sleepable: false } if name == ITERATOR => {}
                ProgramSection::CgroupSkb { .. } if name == EGRESS => {}
                ProgramSection::CgroupSockAddr { .. } if REWRITERS.contains(&name.as_str()) => {}
                _ => return Err(ObjectError::NotLsm(name.clone())),
            }
        }
        let own_data = [EbpfSectionKind::Rodata, EbpfSectionKind::Data, EbpfSectionKind::Bss];
        let maps = parsed.maps.iter().filter(|(_, map)| !own_data.contains(&map.section_kind()));
        let shape = |map: &aya_obj::Map| Shape {
            kind: map.map_type(),
            key: map.key_size(),
            value: map.value_size(),
            entries: map.max_entries(),
            flags: map.map_flags(),
        };
        // Not a cryptographic hash, and not stable between Rust versions: the worst that a change does is a reload.
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        let maps = maps.map(|(name, map)| (name.clone(), shape(map))).collect();
        Ok(Self { hash: hasher.finish().max(1), maps, hooks, globals: globals(&bytes)?, bytes })
    }
}

fn unpacked() -> Result<Vec<u8>, ObjectError> {
    let mut bytes = Vec::new();
    ZlibDecoder::new(OBJECT).read_to_end(&mut bytes).map_err(ObjectError::Unpack)?;
    Ok(bytes)
}

/// Named objects of `.rodata`. Constants that the compiler put there have local symbols, or none.
fn globals(bytes: &[u8]) -> Result<BTreeMap<String, u64>, ObjectError> {
    let elf = object::File::parse(bytes)?;
    let Some(section) = elf.section_by_name(".rodata") else { return Ok(BTreeMap::new()) };
    let mut all = BTreeMap::new();
    for symbol in elf.symbols() {
        if symbol.section_index() == Some(section.index()) && symbol.is_global() && symbol.size() > 0 {
            all.insert(symbol.name()?.to_owned(), symbol.size());
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_what_the_kernel_reads_and_nothing_for_debuggers() {
        let bytes = unpacked().expect("the object");
        let elf = object::File::parse(&*bytes).expect("an ELF file");
        let names: Vec<&str> = elf.sections().map(|section| section.name().expect("a name")).collect();
        for wanted in [".BTF", ".BTF.ext", "lsm/file_open"] {
            assert!(names.contains(&wanted), "{wanted}: {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("debug")), "{names:?}");
    }
}
