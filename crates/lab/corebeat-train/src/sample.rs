//! Samples of programs: alone, beside each other, and on fewer cores.

use crate::Error;
use crate::fit::{Data, deviation};
use corebeat_policy::adapt::{Case, Predictor, Usage, reduced};

/// An environment that runs and measures programs: a simulated machine, or this host.
pub trait Testbed {
    /// Returns the names of the programs.
    fn programs(&self) -> Vec<String>;

    /// Returns the number of cores of the machine.
    fn cores(&self) -> u32;

    /// Runs these programs at the same time on this many cores, and returns the usage of each.
    ///
    /// # Errors
    /// Fails if a program cannot run or was not measured.
    fn run(&mut self, programs: &[usize], cores: u32) -> Result<Vec<Usage>, Error>;
}

/// Samples of a program.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramSamples {
    /// Name of the program.
    pub name: String,
    /// Usage alone on all cores.
    pub alone: Usage,
    /// Share of time in user mode alone on fewer cores, with the number of cores.
    pub fewer: Vec<(u32, f64)>,
    /// Share of time in user mode beside another program on all cores, with the index of the other
    /// program.
    pub beside: Vec<(usize, f64)>,
}

/// Samples of all programs.
#[derive(Debug, Clone, PartialEq)]
pub struct Samples {
    /// Number of cores of the machine.
    pub cores: u32,
    /// Samples of each program.
    pub programs: Vec<ProgramSamples>,
}

impl Samples {
    /// Runs all programs alone, on fewer cores, and beside each other, themselves included: 12
    /// programs yield the 144 and 72 samples of section 6.2.1.
    ///
    /// # Errors
    /// Those of the testbed, and [`Error::Unknown`] if it does not measure time in user mode.
    pub fn collect(testbed: &mut impl Testbed) -> Result<Samples, Error> {
        let (names, cores) = (testbed.programs(), testbed.cores());
        let mut programs = Vec::new();
        let usr = |usage: &Usage| usage.usr.ok_or(Error::Unknown);
        for (at, name) in names.into_iter().enumerate() {
            let alone = one(testbed, at, cores)?;
            usr(&alone)?;
            let mut fewer = Vec::new();
            for given in reduced(cores) {
                fewer.push((given, usr(&one(testbed, at, given)?)?));
            }
            programs.push(ProgramSamples { name, alone, fewer, beside: vec![] });
        }
        for a in 0..programs.len() {
            for b in a..programs.len() {
                let both = testbed.run(&[a, b], cores)?;
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

    /// Samples of two programs that share all cores.
    pub(crate) fn paap(&self) -> Table {
        let rows = self.programs.iter().enumerate().flat_map(|(at, a)| {
            a.beside.iter().map(move |&(b, observed)| {
                let b = Some(self.programs[b].alone);
                Row { program: at, a: a.alone, b, given: self.cores, observed }
            })
        });
        Table { cores: self.cores, rows: rows.collect() }
    }

    /// Samples of one program on fewer cores.
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

fn one(testbed: &mut impl Testbed, program: usize, cores: u32) -> Result<Usage, Error> {
    testbed.run(&[program], cores)?.first().copied().ok_or(Error::Unknown)
}

/// Training data of one model.
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

    /// Standard deviation of a predictor; 0 if the predictor is unknown in a sample.
    pub(crate) fn spread(&self, p: Predictor) -> f64 {
        let values: Option<Vec<f64>> = self.rows.iter().map(|row| self.value(row, p)).collect();
        values.map_or(0.0, |values| deviation(values.into_iter()))
    }

    /// The data with the values of these predictors, all of which must be known.
    pub(crate) fn data(&self, predictors: &[Predictor]) -> Data {
        let values =
            |row: &Row| predictors.iter().map(|p| self.value(row, *p).unwrap_or(0.0)).collect();
        Data {
            values: self.rows.iter().map(values).collect(),
            observed: self.rows.iter().map(|row| row.observed).collect(),
            program: self.rows.iter().map(|row| row.program).collect(),
        }
    }
}
