//! Samples: what programs did alone, beside each other, and on fewer cores.

use crate::Error;
use crate::fit::{Data, deviation};
use corebeat_policy::adapt::{Case, Predictor, Usage, reduced};

/// Where programs can be run and watched: a simulated machine, or this host.
pub trait Range {
    /// Names of the programs.
    fn programs(&self) -> Vec<String>;

    /// The machine's cores.
    fn cores(&self) -> u32;

    /// Runs these programs side by side, on so many cores, and says how each used them.
    ///
    /// # Errors
    /// Where one cannot be run, or was not seen.
    fn run(&mut self, programs: &[usize], cores: u32) -> Result<Vec<Usage>, Error>;
}

/// A program that was watched.
#[derive(Debug, Clone, PartialEq)]
pub struct Watched {
    /// Its name.
    pub name: String,
    /// Alone, on all cores.
    pub alone: Usage,
    /// Its share of time in user mode alone on fewer cores: those, and that.
    pub fewer: Vec<(u32, f64)>,
    /// Its share of time in user mode on all cores beside another program: the other's place among them, and that.
    pub beside: Vec<(usize, f64)>,
}

/// All that was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Samples {
    /// The machine's cores.
    pub cores: u32,
    /// The programs.
    pub programs: Vec<Watched>,
}

impl Samples {
    /// Runs all programs alone, on fewer cores, and each beside each, itself included: 12 programs make the 144 and 72 samples of section
    /// 6.2.1.
    ///
    /// # Errors
    /// The range's, and [`Error::Unknown`] where it does not tell of time in user mode.
    pub fn collect(range: &mut impl Range) -> Result<Samples, Error> {
        let (names, cores) = (range.programs(), range.cores());
        let mut programs = Vec::new();
        let usr = |usage: &Usage| usage.usr.ok_or(Error::Unknown);
        for (at, name) in names.into_iter().enumerate() {
            let alone = one(range, at, cores)?;
            usr(&alone)?;
            let mut fewer = Vec::new();
            for given in reduced(cores) {
                fewer.push((given, usr(&one(range, at, given)?)?));
            }
            programs.push(Watched { name, alone, fewer, beside: vec![] });
        }
        for a in 0..programs.len() {
            for b in a..programs.len() {
                let both = range.run(&[a, b], cores)?;
                let [of_a, of_b] = both.as_slice() else { return Err(Error::Unknown) };
                let (of_a, of_b) = (usr(of_a)?, usr(of_b)?);
                if a == b {
                    programs[a].beside.push((a, (of_a + of_b) / 2.0));
                } else {
                    programs[a].beside.push((b, of_a));
                    programs[b].beside.push((a, of_b));
                }
            }
        }
        Ok(Samples { cores, programs })
    }

    /// Those of two programs side by side.
    pub(crate) fn paap(&self) -> Table {
        let rows = self.programs.iter().enumerate().flat_map(|(at, a)| {
            a.beside.iter().map(move |&(b, observed)| {
                let b = Some(self.programs[b].alone);
                Row { program: at, a: a.alone, b, given: self.cores, observed }
            })
        });
        Table { cores: self.cores, rows: rows.collect() }
    }

    /// Those of one program on fewer cores.
    pub(crate) fn pacc(&self) -> Table {
        let rows = self.programs.iter().enumerate().flat_map(|(at, a)| {
            let row = move |&(given, observed): &(u32, f64)| Row {
                program: at,
                a: a.alone,
                b: None,
                given,
                observed,
            };
            a.fewer.iter().map(row)
        });
        Table { cores: self.cores, rows: rows.collect() }
    }
}

fn one(range: &mut impl Range, program: usize, cores: u32) -> Result<Usage, Error> {
    range.run(&[program], cores)?.first().copied().ok_or(Error::Unknown)
}

/// What one model is trained on.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) cores: u32,
    pub(crate) rows: Vec<Row>,
}

/// A sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) program: usize,
    pub(crate) a: Usage,
    pub(crate) b: Option<Usage>,
    pub(crate) given: u32,
    pub(crate) observed: f64,
}

impl Table {
    fn value(&self, row: &Row, p: Predictor) -> Option<f64> {
        p.value(Case { a: &row.a, b: row.b.as_ref(), cores: self.cores, given: row.given })
    }

    /// By how much a predictor varies; nothing where it is not known of all samples.
    pub(crate) fn spread(&self, p: Predictor) -> f64 {
        let values: Option<Vec<f64>> = self.rows.iter().map(|row| self.value(row, p)).collect();
        values.map_or(0.0, |values| deviation(values.into_iter()))
    }

    /// With the values of these predictors, all of which are known.
    pub(crate) fn data(&self, predictors: &[Predictor]) -> Data {
        let values = |row: &Row| predictors.iter().map(|p| self.value(row, *p).unwrap_or(0.0)).collect();
        Data {
            values: self.rows.iter().map(values).collect(),
            observed: self.rows.iter().map(|row| row.observed).collect(),
            program: self.rows.iter().map(|row| row.program).collect(),
        }
    }
}
