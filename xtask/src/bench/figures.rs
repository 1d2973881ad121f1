//! Figures: percentiles, medians of rounds, and the table of them with what they should be.

use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// What one turn of calls took, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    /// The median.
    pub(super) p50: f64,
    /// The 99th of 100.
    pub(super) p99: f64,
}

impl Spread {
    pub(super) fn of(mut took: Vec<Duration>) -> Self {
        took.sort_unstable();
        let at = |percent: usize| {
            let index = (took.len() * percent / 100).min(took.len().saturating_sub(1));
            took.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
        };
        Self { p50: at(50), p99: at(99) }
    }
}

/// The middle of some figures.
pub(super) fn median<I: Iterator<Item = f64>>(figures: I) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The least of some figures: what it takes when the machine does nothing else.
pub(super) fn least<I: Iterator<Item = f64>>(figures: I) -> f64 {
    figures.min_by(f64::total_cmp).unwrap_or(f64::NAN)
}

/// Rows of figures, one column for each way, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<(String, Vec<(String, f64)>)>,
    aims: Vec<(String, String, String)>,
}

impl Table {
    pub(super) fn add(&mut self, row: &str, way: &str, figure: f64) {
        match self.rows.iter_mut().find(|(name, _)| name == row) {
            Some((_, figures)) => figures.push((way.to_owned(), figure)),
            None => self.rows.push((row.to_owned(), vec![(way.to_owned(), figure)])),
        }
    }

    /// What a figure should be.
    pub(super) fn aim(&mut self, row: &str, way: &str, aim: &str) {
        self.aims.push((row.to_owned(), way.to_owned(), aim.to_owned()));
    }

    /// A row of its own: one figure over another of the same row, if both are there.
    pub(super) fn ratio(&mut self, name: &str, row: &str, over: &str, under: &str, aim: &str) {
        if let (Some(over), Some(under)) = (self.find(row, over), self.find(row, under)) {
            self.add(name, "ringfence", over / under);
            self.aim(name, "ringfence", aim);
        }
    }

    pub(super) fn find(&self, row: &str, way: &str) -> Option<f64> {
        let (_, figures) = self.rows.iter().find(|(name, _)| name == row)?;
        figures.iter().find(|(name, _)| name == way).map(|(_, figure)| *figure)
    }

    pub(super) fn markdown(&self) -> String {
        let mut ways: Vec<&str> = Vec::new();
        for (name, _) in self.rows.iter().flat_map(|(_, figures)| figures) {
            if !ways.contains(&name.as_str()) {
                ways.push(name);
            }
        }
        let mut text = format!("| | {} | aim |\n|---|{}---|\n", ways.join(" | "), "---:|".repeat(ways.len()));
        for (row, _) in &self.rows {
            let _ = write!(text, "| {row} |");
            for way in &ways {
                let figure = self.find(row, way).map(shown).unwrap_or_default();
                let _ = write!(text, " {figure} |");
            }
            let aim = self.aims.iter().find(|(of, ..)| of == row).map_or("", |(_, _, aim)| aim);
            let _ = writeln!(text, " {aim} |");
        }
        text
    }

    pub(super) fn json(&self) -> String {
        let mut object = serde_json::Map::new();
        for (row, figures) in &self.rows {
            let mut columns: serde_json::Map<String, Value> =
                figures.iter().map(|(way, figure)| (way.clone(), json!(figure))).collect();
            if let Some((_, _, aim)) = self.aims.iter().find(|(of, ..)| of == row) {
                columns.insert("aim".to_owned(), json!(aim));
            }
            object.insert(row.clone(), Value::Object(columns));
        }
        format!("{}\n", Value::Object(object))
    }
}

fn shown(figure: f64) -> String {
    if figure.abs() >= 100.0 { format!("{figure:.0}") } else { format!("{figure:.3}") }
}

#[cfg(test)]
mod tests {
    use super::{Spread, Table, least, median};
    use std::time::Duration;

    #[test]
    fn figures_become_a_table_with_aims() {
        let took = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(Spread::of(took), Spread { p50: 51.0, p99: 100.0 });
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(least([3.0, 1.0, 2.0].into_iter()), 1.0);
        let mut table = Table::default();
        table.add("p99", "tee", 2.0);
        table.add("p99", "ringfence", 3.0);
        table.ratio("p99 to tee's", "p99", "ringfence", "tee", "at most 1.5");
        table.ratio("of nobody", "p99", "ringfence", "FastMCP", "at least 30");
        let expected = "| | tee | ringfence | aim |\n|---|---:|---:|---|\n| p99 | 2.000 | 3.000 |  |\n\
                        | p99 to tee's |  | 1.500 | at most 1.5 |\n";
        assert_eq!(table.markdown(), expected);
        let json: serde_json::Value = serde_json::from_str(&table.json()).unwrap();
        assert_eq!(json["p99 to tee's"], serde_json::json!({"ringfence": 1.5, "aim": "at most 1.5"}));
    }
}
