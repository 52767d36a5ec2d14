//! Figures with the bounds they are held to.

use seawall_cli::output::Table;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// Shown only: nothing is promised.
    None,
}

#[derive(Debug)]
pub struct Figure {
    /// For programs.
    pub key: &'static str,
    pub name: &'static str,
    pub unit: &'static str,
    pub value: f64,
    pub bound: Bound,
    /// Promised for the reference machine only: shown on every machine, checked on none.
    pub reference: bool,
    /// `--check` fails only beyond the bound times this.
    pub slack: f64,
}

/// Factor by which `--check` lets ratios of whole processes exceed their bounds, on any machine.
const SLACK: f64 = 1.2;

impl Figure {
    /// Whether the value is within its bound; `None` without a bound. A NaN is never within one.
    fn kept(&self) -> Option<bool> {
        match self.bound {
            Bound::AtMost(bound) => Some(self.value <= bound),
            Bound::AtLeast(bound) => Some(self.value >= bound),
            Bound::None => None,
        }
    }

    /// Whether `--check` accepts the figure.
    fn is_accepted(&self) -> bool {
        match self.bound {
            _ if self.reference => true,
            Bound::AtMost(bound) => self.value <= bound * self.slack,
            Bound::AtLeast(bound) => self.value >= bound / self.slack,
            Bound::None => true,
        }
    }
}

#[derive(Debug, Default)]
pub struct Report {
    pub figures: Vec<Figure>,
}

impl Report {
    /// Whether the promises for any machine are kept: ratios to peers of the same run, and sizes.
    pub fn all_kept(&self) -> bool {
        self.figures.iter().all(Figure::is_accepted)
    }

    /// A figure that is held on any machine.
    pub fn promise(
        &mut self,
        key: &'static str,
        name: &'static str,
        unit: &'static str,
        value: f64,
        bound: Bound,
    ) {
        self.figures.push(Figure { key, name, unit, value, bound, reference: false, slack: 1.0 });
    }

    /// The ratio of a whole process to a peer of the same run, with its upper bound. `--check` allows a fifth more.
    pub fn ratio(&mut self, key: &'static str, name: &'static str, value: f64, most: f64) {
        let bound = Bound::AtMost(most);
        self.figures.push(Figure { key, name, unit: "x", value, bound, reference: false, slack: SLACK });
    }

    /// A figure that is promised for the reference machine.
    pub fn reference(
        &mut self,
        key: &'static str,
        name: &'static str,
        unit: &'static str,
        value: f64,
        bound: Bound,
    ) {
        self.figures.push(Figure { key, name, unit, value, bound, reference: true, slack: 1.0 });
    }

    pub fn told(&mut self, key: &'static str, name: &'static str, unit: &'static str, value: f64) {
        self.promise(key, name, unit, value, Bound::None);
    }

    pub fn table(&self) -> Table {
        let mut table = Table::new(&["FIGURE", "MEASURED", "PROMISED", ""]);
        for figure in &self.figures {
            let promised = match figure.bound {
                Bound::AtMost(bound) => format!("<= {bound} {}", figure.unit),
                Bound::AtLeast(bound) => format!(">= {bound} {}", figure.unit),
                Bound::None => String::new(),
            };
            let verdict = match figure.kept() {
                Some(true) => "ok",
                Some(false) if figure.slack > 1.0 && figure.is_accepted() => "above, within a fifth",
                Some(false) => "MISSED",
                None => "",
            };
            let measured = format!("{:.3} {}", figure.value, figure.unit);
            table.row(vec![figure.name.to_owned(), measured, promised, verdict.to_owned()]);
        }
        table
    }

    pub fn to_json(&self) -> Value {
        let figures = self.figures.iter().map(|figure| {
            let bound = match figure.bound {
                Bound::AtMost(bound) => json!({ "at_most": bound }),
                Bound::AtLeast(bound) => json!({ "at_least": bound }),
                Bound::None => Value::Null,
            };
            let value =
                json!({ "value": figure.value, "unit": figure.unit, "bound": bound, "ok": figure.kept() });
            (figure.key.to_owned(), value)
        });
        json!({ "ok": self.all_kept(), "figures": figures.collect::<serde_json::Map<_, _>>() })
    }
}

/// The value that this part of all are not above; the nearest one, without interpolation.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64, bound: Bound) -> Figure {
        Figure { key: "k", name: "n", unit: "ms", value, bound, reference: false, slack: 1.0 }
    }

    #[test]
    fn promises_are_kept_or_not() {
        assert_eq!(figure(1.2, Bound::AtMost(1.2)).kept(), Some(true));
        assert_eq!(figure(1.3, Bound::AtMost(1.2)).kept(), Some(false));
        assert_eq!(figure(499.0, Bound::AtLeast(500.0)).kept(), Some(false));
        assert_eq!(figure(f64::NAN, Bound::AtLeast(500.0)).kept(), Some(false));
        assert_eq!(figure(9.0, Bound::None).kept(), None);
        let report = Report { figures: vec![figure(9.0, Bound::None), figure(1.3, Bound::AtMost(1.2))] };
        assert!(!report.all_kept());
        assert_eq!(report.to_json()["ok"], false);
        let elsewhere = Figure { reference: true, ..figure(1.3, Bound::AtMost(1.2)) };
        assert!(Report { figures: vec![elsewhere] }.all_kept(), "another machine may be slower");
    }

    #[test]
    fn ratios_of_processes_have_a_fifth_of_slack() {
        let kept = |value: f64| {
            let mut report = Report::default();
            report.ratio("k", "n", value, 1.6);
            (report.to_json()["figures"]["k"]["ok"] == true, report.all_kept())
        };
        assert_eq!([kept(1.6), kept(1.9), kept(1.93)], [(true, true), (false, true), (false, false)]);
        assert_eq!(kept(f64::NAN), (false, false));
    }

    #[test]
    fn percentiles() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&sorted, 0.50), 50.0);
        assert_eq!(percentile(&sorted, 0.99), 99.0);
        assert_eq!(percentile(&[7.0], 0.5), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
    }
}
