//! What the object is embedded without: the debugger's sections, which bpf-linker makes BTF from and which nobody reads after.

use object::{
    build::elf::{Builder, SectionData},
    elf::SHT_STRTAB,
};

/// The object without DWARF; BTF, which the kernel and the loader read, stays.
///
/// # Errors
/// What is no ELF file.
pub fn without_dwarf(elf: &[u8]) -> Result<Vec<u8>, object::build::Error> {
    let mut builder = Builder::read(elf)?;
    for section in &mut builder.sections {
        let name: &[u8] = &section.name;
        section.delete = [&b".debug_"[..], b".rel.debug_"].iter().any(|of| name.starts_with(of));
    }
    // LLVM has one table for the names of sections and of symbols.
    if !builder.sections.iter().any(|section| matches!(section.data, SectionData::SectionString)) {
        let names = builder.sections.add();
        names.name = b".shstrtab"[..].into();
        names.sh_type = SHT_STRTAB;
        names.sh_addralign = 1;
        names.data = SectionData::SectionString;
    }
    // Symbols of sections that are gone, and what refers to them.
    builder.delete_orphans();
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(stripped)
}
