//! `corebeat demo trace`: a bank whose transactions tell of themselves.
//!
//! The bank of Schindewolf and Karl, *Capturing Transactional Memory Application's Behavior* (2012), section 3.3: short
//! transactions move money, and in turn with them a long one adds up all accounts. All that they do is traced and exported, and
//! babeltrace2 opens it, if it is there.

use crate::end::Tidy;
use crate::failure::{Done, Failure, print};
use corebeat_stm::trace::{self, Detail, Report};
use corebeat_stm::{TCell, atomically, snapshot};
use corebeat_trace::{Options as Recorded, Reader, Summary, write_ctf};
use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

const ACCOUNTS: usize = 64;
const BALANCE: i64 = 1_000;
/// A transaction of so many adds up all accounts.
const SUM_EVERY: u32 = 5;
/// Lines that are shown of what babeltrace2 says.
const LINES: usize = 3;
/// Tellers, at most.
const THREADS_MAX: usize = 64;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Transactions of each thread
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    transactions: u32,
    /// Keep the trace and what it was exported to in this folder, which is to be new
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// A folder, which goes again if nobody wants it.
struct Folder {
    path: PathBuf,
    /// It, where it is to go.
    goes: Arc<Mutex<Option<PathBuf>>>,
    tidy: Option<Tidy>,
}

/// So often a folder is removed in which something is made meanwhile.
const REMOVALS_MAX: usize = 100;

fn remove(goes: &Mutex<Option<PathBuf>>) {
    let Some(path) = goes.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let _ = (0..REMOVALS_MAX).find(|_| std::fs::remove_dir_all(&path).is_ok() || !path.exists());
}

impl Folder {
    fn new(output: Option<&PathBuf>) -> Result<Folder, Failure> {
        let name = || std::env::temp_dir().join(format!("corebeat-trace-{}", std::process::id()));
        let path = output.cloned().unwrap_or_else(name);
        let goes = Arc::new(Mutex::new(None));
        let at_end = Arc::clone(&goes);
        let tidy = Tidy::at_end(move || remove(&at_end));
        let tidy = tidy.map_err(|e| Failure::own(format!("cannot take signals: {e}")))?;
        {
            // A signal waits until it is known whether there is something to remove.
            let mut goes = goes.lock().unwrap_or_else(PoisonError::into_inner);
            std::fs::create_dir(&path).map_err(|e| {
                Failure::usage(format!("cannot make {}: {e}; name another folder", path.display()))
            })?;
            *goes = output.is_none().then(|| path.clone());
        }
        Ok(Folder { path, goes, tidy: Some(tidy) })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A signal that is ending us does the rest by itself.
        drop(self.tidy.take());
        remove(&self.goes);
    }
}

pub(crate) fn main(options: &Options) -> Done {
    let folder = Folder::new(options.output.as_ref())?;
    let (path, ctf) = (folder.path.join("bank.cbt"), folder.path.join("ctf"));
    let threads = thread::available_parallelism().map_or(2, usize::from).clamp(2, THREADS_MAX);
    print(format_args!(
        "{threads} threads with {} transactions each on {ACCOUNTS} accounts; one of {SUM_EVERY} adds up all of them.\n\n",
        options.transactions
    ))?;
    let summary = record(&path, threads, options.transactions)?;
    let open = || File::open(&path).map(BufReader::new).map_err(Failure::own);
    let report = Report::read(open()?).map_err(Failure::own)?;
    let expected = u64::from(options.transactions) * threads as u64;
    if summary.lost == 0 && report.commits != expected {
        let commits = report.commits;
        return Err(Failure::own(format!("{commits} commits are told, not {expected}; please report this")));
    }
    print(&report)?;
    let events = count(open()?)?;
    print(format_args!(
        "\n{events} events, and {} lost; {} bytes in buffers, {} in the file ({:.1} times smaller)\n",
        summary.lost,
        summary.event_bytes,
        summary.file_bytes,
        summary.event_bytes as f64 / summary.file_bytes.max(1) as f64
    ))?;
    let mut reader = Reader::new(open()?).map_err(Failure::own)?;
    write_ctf(&mut reader, &ctf).map_err(Failure::own)?;
    show(&ctf, events)?;
    match &options.output {
        Some(path) => print(format_args!(
            "\n{} has bank.cbt, for 'corebeat trace', and ctf, for others.\n",
            path.display()
        ))?,
        None => print("\nThe trace goes now; --output FOLDER keeps it, for 'corebeat trace' and others.\n")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the bank, and records all that its transactions do.
fn record(path: &Path, threads: usize, transactions: u32) -> Result<Summary, Failure> {
    let recorded = Recorded::default().create(path).map_err(Failure::own)?;
    recorded.install().map_err(Failure::own)?;
    trace::set(Detail::Full);
    let accounts: Vec<TCell<i64>> = (0..ACCOUNTS).map(|_| TCell::new(BALANCE)).collect();
    trace::name(&accounts, "accounts");
    let total = ACCOUNTS as i64 * BALANCE;
    let right = thread::scope(|scope| {
        let teller = |number: u32| {
            let accounts = &accounts;
            move || (0..transactions).all(|n| teller(accounts, number, n) == total)
        };
        let tellers: Vec<_> = (0..threads as u32)
            .map(|number| {
                let builder = thread::Builder::new().name(format!("teller {number}"));
                builder.spawn_scoped(scope, teller(number)).map_err(Failure::own)
            })
            .collect::<Result<_, Failure>>()?;
        Ok::<bool, Failure>(tellers.into_iter().all(|teller| teller.join().is_ok_and(|right| right)))
    })?;
    trace::set(Detail::Off);
    let summary = recorded.finish().map_err(Failure::own)?;
    if right { Ok(summary) } else { Err(Failure::own("money is missing; please report this")) }
}

/// One transaction of a teller: what is in all accounts then, as far as it knows.
fn teller(accounts: &[TCell<i64>], number: u32, n: u32) -> i64 {
    if n.is_multiple_of(SUM_EVERY) {
        return snapshot(|tx| accounts.iter().try_fold(0, |sum, account| Ok(sum + tx.read(account)?)));
    }
    // Knuth, *The Art of Computer Programming*, volume 3, 6.4: multiplicative hashing.
    let random = (n ^ number << 24).wrapping_mul(2_654_435_769);
    let [from, to] = [random >> 26, random >> 20].map(|bits| bits as usize % ACCOUNTS);
    atomically(|tx| {
        tx.update(&accounts[from], |balance| balance - 1)?;
        tx.update(&accounts[to], |balance| balance + 1)
    });
    ACCOUNTS as i64 * BALANCE
}

fn count(file: BufReader<File>) -> Result<u64, Failure> {
    let mut reader = Reader::new(file).map_err(Failure::own)?;
    let mut events = 0;
    while let Some(packet) = reader.next_packet().map_err(Failure::own)? {
        events += packet.events().len() as u64;
    }
    Ok(events)
}

/// Has babeltrace2 open what was exported.
fn show(ctf: &Path, events: u64) -> Result<(), Failure> {
    let output = match Command::new("babeltrace2").arg(ctf).output() {
        Ok(output) => output,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return print(
                "\nbabeltrace2 is not here; to see it open the trace, get it (on Debian: apt install babeltrace2), or give\n\
                 --output FOLDER and open FOLDER/ctf with Trace Compass.\n",
            );
        }
        Err(e) => return Err(Failure::own(format!("cannot run babeltrace2: {e}"))),
    };
    let told = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = told.lines().collect();
    if !output.status.success() || lines.len() as u64 != events {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().next().unwrap_or("it did not say why");
        let read = lines.len();
        return Err(Failure::own(format!(
            "babeltrace2 reads {read} of {events} events: {why}; please report this"
        )));
    }
    let middle = lines.len() / 2;
    let some: String = lines[middle..].iter().take(LINES).map(|line| format!("  {line}\n")).collect();
    print(format_args!(
        "\nbabeltrace2 opens it, and reads all {events} events; some from the middle:\n{some}"
    ))
}
