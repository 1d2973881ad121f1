//! Makes a table of `rules/gitleaks.toml`: a program that starts parses no rules.

use std::{env, error::Error, fmt::Write as _, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let source = "rules/gitleaks.toml";
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed=build.rs");
    let data: toml::Table = fs::read_to_string(source)?.parse()?;
    let mut table = String::from("&[\n");
    for rule in data.get("rules").and_then(toml::Value::as_array).ok_or("no rules")? {
        let text = |key: &str| rule.get(key).and_then(toml::Value::as_str).ok_or(format!("no {key}: {rule}"));
        let number = |key: &str| match rule.get(key) {
            Some(toml::Value::Integer(number)) => number.to_string(),
            Some(toml::Value::Float(number)) => number.to_string(),
            _ => "0".to_owned(),
        };
        let keywords: Option<Vec<&str>> = rule
            .get("keywords")
            .and_then(toml::Value::as_array)
            .and_then(|words| words.iter().map(toml::Value::as_str).collect());
        writeln!(
            table,
            "    Rule {{ id: {:?}, regex: {:?}, entropy: {}_f32, group: {}, keywords: &{:?} }},",
            text("id")?,
            text("regex")?,
            number("entropy"),
            number("secretGroup"),
            keywords.ok_or("no keywords")?,
        )?;
    }
    table.push_str("]\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("rules.rs"), table)?;
    Ok(())
}
