//! `corebeat demo trace`: traces the transactions of a bank.
//!
//! The bank of Schindewolf and Karl, *Capturing Transactional Memory Application's Behavior*
//! (2012), section 3.3: short transactions move money, and long transactions between them add up
//! all accounts. Every access is traced, the trace is exported to the Common Trace Format, and
//! babeltrace2, where it is installed, reads the export.

use corebeat_command::{Cleanup, Done, Failure, TemporaryFolder, TemporaryUse, print};
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
/// One transaction in this many adds up all accounts.
const SUM_EVERY: u32 = 5;
/// Lines of babeltrace2's output that are printed.
const LINES: usize = 3;
/// Largest number of teller threads.
const THREADS_MAX: usize = 64;

/// Options of `corebeat demo trace`.
#[derive(clap::Args)]
pub struct Options {
    /// Number of transactions of each thread
    #[arg(long, value_name = "NUMBER", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    transactions: u32,
    /// Keep the trace and its export in this new directory
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// The directory of the trace. It is removed at the end unless the user named it.
struct Folder {
    path: PathBuf,
    /// The directory to remove, if it is to be removed.
    to_remove: Arc<Mutex<Option<TemporaryFolder>>>,
    /// Dropped last: if a signal ends the process, the drop blocks.
    _cleanup: Cleanup,
}

/// Attempts to remove a directory in which another thread still creates files.
const REMOVALS_MAX: usize = 100;

fn remove(to_remove: &Mutex<Option<TemporaryFolder>>) {
    let Some(folder) = to_remove.lock().unwrap_or_else(PoisonError::into_inner).take() else {
        return;
    };
    let path = folder.path();
    let _ = (0..REMOVALS_MAX).find(|_| std::fs::remove_dir_all(path).is_ok() || !path.exists());
}

impl Folder {
    fn new(output: Option<&PathBuf>) -> Result<Folder, Failure> {
        let to_remove = Arc::new(Mutex::new(None));
        let on_signal = Arc::clone(&to_remove);
        let cleanup = Cleanup::on_signal(move || remove(&on_signal));
        let _cleanup = cleanup
            .map_err(|e| Failure::internal(format!("cannot install signal handlers: {e}")))?;
        let path = match output {
            Some(path) => std::fs::create_dir(path).map(|()| path.clone()).map_err(|e| {
                let path = path.display();
                Failure::usage(format!("cannot create {path}: {e}; name another directory"))
            }),
            None => {
                // A signal waits for this lock, so that it removes exactly what was created.
                let mut to_remove = to_remove.lock().unwrap_or_else(PoisonError::into_inner);
                let created = TemporaryFolder::create(TemporaryUse::Trace).map_err(|e| {
                    let parent = std::env::temp_dir();
                    Failure::internal(format!(
                        "cannot create a folder in {}: {e}; name a directory with --output",
                        parent.display()
                    ))
                });
                created.map(|folder| to_remove.insert(folder).path().to_owned())
            }
        }?;
        Ok(Folder { path, to_remove, _cleanup })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.to_remove);
    }
}

/// Runs the command.
///
/// # Errors
/// See the crate's front page.
pub fn main(options: &Options) -> Done {
    let folder = Folder::new(options.output.as_ref())?;
    let (path, ctf) = (folder.path.join("bank.cbt"), folder.path.join("ctf"));
    let threads = thread::available_parallelism().map_or(2, usize::from).clamp(2, THREADS_MAX);
    print(format_args!(
        "{threads} threads run {} transactions each on {ACCOUNTS} accounts; one in {SUM_EVERY} adds up \
         all accounts.\n\n",
        options.transactions
    ))?;
    let summary = record(&path, threads, options.transactions)?;
    let open = || File::open(&path).map(BufReader::new).map_err(Failure::internal);
    let report = Report::read(open()?).map_err(Failure::internal)?;
    let expected = u64::from(options.transactions) * threads as u64;
    if summary.lost == 0 && report.commits != expected {
        let commits = report.commits;
        return Err(Failure::internal(format!(
            "the trace has {commits} commits instead of {expected}; please report this"
        )));
    }
    print(&report)?;
    let events = count(open()?)?;
    print(format_args!(
        "\n{events} events, {} lost; {} bytes in buffers, {} in the file ({:.1} times smaller)\n",
        summary.lost,
        summary.event_bytes,
        summary.file_bytes,
        summary.event_bytes as f64 / summary.file_bytes.max(1) as f64
    ))?;
    let mut reader = Reader::new(open()?).map_err(Failure::internal)?;
    write_ctf(&mut reader, &ctf).map_err(Failure::internal)?;
    show(&ctf, events)?;
    match &options.output {
        Some(path) => print(format_args!(
            "\n{} contains bank.cbt for 'corebeat trace' and ctf for other tools.\n",
            path.display()
        ))?,
        None => print(
            "\nThe trace is removed now; --output FOLDER keeps it for 'corebeat trace' and others.\n",
        )?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the bank and records every access of its transactions.
fn record(path: &Path, threads: usize, transactions: u32) -> Result<Summary, Failure> {
    let recorded = Recorded::default().create(path).map_err(Failure::internal)?;
    recorded.install().map_err(Failure::internal)?;
    trace::set(Detail::Full);
    let accounts: Vec<TCell<i64>> = (0..ACCOUNTS).map(|_| TCell::new(BALANCE)).collect();
    trace::name(&accounts, "accounts");
    let total = ACCOUNTS as i64 * BALANCE;
    let is_correct = thread::scope(|scope| {
        let teller = |number: u32| {
            let accounts = &accounts;
            move || (0..transactions).all(|n| teller(accounts, number, n) == total)
        };
        let tellers: Vec<_> = (0..threads as u32)
            .map(|number| {
                let builder = thread::Builder::new().name(format!("teller {number}"));
                builder.spawn_scoped(scope, teller(number)).map_err(Failure::internal)
            })
            .collect::<Result<_, Failure>>()?;
        Ok::<bool, Failure>(
            tellers.into_iter().all(|teller| teller.join().is_ok_and(|is_correct| is_correct)),
        )
    })?;
    trace::set(Detail::Off);
    let summary = recorded.finish().map_err(Failure::internal)?;
    match is_correct {
        true => Ok(summary),
        false => Err(Failure::internal("money is missing; please report this")),
    }
}

/// Runs one transaction of a teller. Returns the sum of all accounts, as far as the transaction
/// observed it.
fn teller(accounts: &[TCell<i64>], number: u32, n: u32) -> i64 {
    if n.is_multiple_of(SUM_EVERY) {
        return snapshot(|tx| {
            accounts.iter().try_fold(0, |sum, account| Ok(sum + tx.read(account)?))
        });
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
    let mut reader = Reader::new(file).map_err(Failure::internal)?;
    let mut events = 0;
    while let Some(packet) = reader.next_packet().map_err(Failure::internal)? {
        events += packet.events().len() as u64;
    }
    Ok(events)
}

/// Reads the export with babeltrace2.
fn show(ctf: &Path, events: u64) -> Result<(), Failure> {
    let output = match Command::new("babeltrace2").arg(ctf).output() {
        Ok(output) => output,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return print(
                "\nbabeltrace2 is not installed; install it to read the trace here (on Debian: apt install\n\
                 babeltrace2), or use --output FOLDER and open FOLDER/ctf with Trace Compass.\n",
            );
        }
        Err(e) => return Err(Failure::internal(format!("cannot run babeltrace2: {e}"))),
    };
    let stdout = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = stdout.lines().collect();
    if !output.status.success() || lines.len() as u64 != events {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let why = stderr.lines().next().unwrap_or("no reason was printed");
        let read = lines.len();
        return Err(Failure::internal(format!(
            "babeltrace2 reads {read} of {events} events: {why}; please report this"
        )));
    }
    let middle = lines.len() / 2;
    let some: String =
        lines[middle..].iter().take(LINES).map(|line| format!("  {line}\n")).collect();
    print(format_args!(
        "\nbabeltrace2 reads all {events} events of the export; some from the middle:\n{some}"
    ))
}
