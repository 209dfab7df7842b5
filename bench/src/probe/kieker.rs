//! Measures Kieker for Java, the subject of the paper: `programs/Kieker.java` contains the probe of
//! Kieker's aspect for AspectJ.
//!
//! The settings are the best ones that were tried: a queue with one consumer and with room for more
//! than a lap, a binary file format, a heap that is allocated at the start, and the collector for
//! throughput. A caller waits when the queue is full, so no record is lost. The warm-up lasts until
//! the measured code is compiled.

use super::{CALLS_A_LAP, Figure, PAUSE, Stage};
use crate::apart;
use crate::line::{cpus, pin};
use crate::round::Measured;
use crate::session::Session;
use crate::tool::{JAVA, JAVAC, KIEKER, Tool, make};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

pub(super) const TOOLS: [Tool; 3] = [JAVA, JAVAC, KIEKER];

/// Laps that warm up.
const WARM: u32 = 40;
/// Capacity of the queue in records, a power of 2.
const QUEUE_RECORDS: u32 = 2 * CALLS_A_LAP;

pub(super) fn measure(
    session: &Session,
    figure: Figure,
    (stage, depth): (Stage, u32),
) -> Result<Measured, String> {
    let jar = KIEKER.path().ok_or_else(|| KIEKER.advice())?;
    let class_path = format!("{}:{}", jar.display(), session.folder().display());
    if !session.folder().join("Kieker.class").exists() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/Kieker.java");
        let mut javac = Command::new(JAVAC.program);
        javac.args(["-cp", &class_path]).arg("-d").arg(session.folder()).arg(source);
        make(javac, "Kieker.java")?;
    }
    let folder = tempfile::tempdir_in(session.folder()).map_err(|e| e.to_string())?;
    let writer =
        if stage == Stage::Collecting { "dump.DumpWriter" } else { "filesystem.BinaryFileWriter" };
    let mut java = Command::new(JAVA.program);
    java.args(["-Xms512m", "-XX:+AlwaysPreTouch", "-XX:+UseParallelGC", "-cp", &class_path]);
    let mut set = |name: &str, value: &str| {
        java.arg(format!("-Dkieker.monitoring.{name}={value}"));
    };
    set("writer", &format!("kieker.monitoring.writer.{writer}"));
    set("core.controller.WriterController.RecordQueueFQN", "org.jctools.queues.MpscArrayQueue");
    set("core.controller.WriterController.RecordQueueSize", &QUEUE_RECORDS.to_string());
    set("writer.filesystem.BinaryFileWriter.customStoragePath", &folder.path().to_string_lossy());
    set("writer.filesystem.BinaryFileWriter.bufferSize", "1048576");
    set("writer.filesystem.BinaryFileWriter.maxEntriesInFile", "10000000");
    let (warm, laps) = if session.quick { (0, 1) } else { (WARM, super::LAPS) };
    java.arg("Kieker").arg((stage != Stage::Off).to_string()).arg(depth.to_string());
    java.arg(super::calls_a_lap(session).to_string()).arg(warm.to_string()).arg(laps.to_string());
    java.arg(PAUSE.as_millis().to_string());
    if stage == Stage::OneCpu {
        let cpu = cpus().first().copied();
        // SAFETY: between fork and exec the closure makes one system call and allocates no memory.
        unsafe {
            java.pre_exec(move || {
                cpu.map(pin);
                Ok(())
            });
        }
    }
    let run = apart::run(java)?;
    Ok(Measured::Value(match figure {
        Figure::Cpu => run.number("cpu ")? / run.number("measured ")?,
        Figure::Bytes => size(folder.path())? as f64 / (2.0 * run.number("calls ")?),
        Figure::Caller | Figure::Period => run.value,
    }))
}

/// Bytes of all files in a folder and its subfolders.
pub(super) fn size(folder: &Path) -> Result<u64, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut sum = 0;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        sum += if kind.is_dir() {
            size(&entry.path())?
        } else {
            entry.metadata().map_err(failed)?.len()
        };
    }
    Ok(sum)
}
