//! `slackwater-s3-server`: see the head of the library.

use std::error::Error;
use std::io::{Read, Write, stdin, stdout};
use std::path::PathBuf;
use std::time::Duration;

use slackwater_s3_server::{BUCKET, Server};

const USAGE: &str = "\
Usage: slackwater-s3-server [--delay-ms N] [--bucket NAME] [ROOT]

Prints the environment variables with which programs find it, then an
empty line, and serves until its standard input ends. Without ROOT, the
objects are in memory and are removed at the end.";

fn main() -> Result<(), Box<dyn Error>> {
    let (mut delay, mut bucket, mut root) = (Duration::ZERO, BUCKET.to_owned(), None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--delay-ms" => delay = Duration::from_millis(value()?.parse()?),
            "--bucket" => bucket = value()?,
            "--help" | "-h" => {
                writeln!(stdout(), "{USAGE}")?;
                return Ok(());
            }
            option if option.starts_with('-') => return Err(format!("unknown option {option}; see --help").into()),
            path => root = Some(PathBuf::from(path)),
        }
    }
    let server = match root {
        Some(root) => Server::start_in(&root, &bucket)?,
        None => Server::start()?,
    };
    server.set_delay(delay);
    let mut out = stdout().lock();
    for (name, value) in server.environment() {
        writeln!(out, "{name}={value}")?;
    }
    writeln!(out)?;
    out.flush()?;
    stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
