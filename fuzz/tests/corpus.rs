//! Replays the fuzzers' corpus: what once broke something, and what each target should reach, on every test run.

use ringfence_fuzz::targets;
use std::{fs, path::Path};

#[test]
fn every_target_holds_over_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut folders: Vec<_> =
        fs::read_dir(&corpus).expect("the corpus").flatten().map(|folder| folder.file_name()).collect();
    for (name, run) in targets::ALL {
        let mut files = 0;
        for file in fs::read_dir(corpus.join(name)).expect(name).flatten() {
            eprintln!("{name}/{}", file.file_name().to_string_lossy());
            run(&fs::read(file.path()).expect("a file"));
            files += 1;
        }
        assert!(files >= 5, "{name} has a corpus");
        folders.retain(|folder| *folder != *name);
    }
    assert!(folders.is_empty(), "of no target: {folders:?}");
}
