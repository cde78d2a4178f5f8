//! `slackwater man`: the manual page, generated from the definition of the command line.

use std::io::{self, Write};

use clap::CommandFactory;
use slackwater_control::exit::{EXIT_STATUSES, Failure};

use crate::arguments::Arguments;
use crate::help_texts::EXAMPLES;

/// Prints the manual page, with a section for each command.
pub(crate) fn run() -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot write the manual: {error}"));
    io::stdout().write_all(&manual().map_err(failed)?).map_err(failed)
}

fn manual() -> io::Result<Vec<u8>> {
    let mut command = Arguments::command();
    command.build();
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    for command in command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help") {
        let page = clap_mangen::Man::new(command.clone());
        writeln!(text, ".SH \"SLACKWATER {}\"", command.get_name().to_uppercase())?;
        page.render_synopsis_section(&mut text)?;
        page.render_description_section(&mut text)?;
        page.render_options_section(&mut text)?;
        let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        write_as_is(&mut text, "NOTES", notes.trim_end_matches(EXIT_STATUSES))?;
    }
    write_as_is(&mut text, "EXAMPLES", EXAMPLES.trim_start_matches("Examples:\n"))?;
    write_as_is(&mut text, "EXIT STATUS", EXIT_STATUSES.trim_start_matches("Exit status:\n"))?;
    Ok(text)
}

/// Writes a section whose lines are not refilled.
fn write_as_is(page: &mut Vec<u8>, title: &str, text: &str) -> io::Result<()> {
    writeln!(page, ".SH {title:?}\n.nf")?;
    for line in text.trim().lines() {
        // Otherwise roff would take a line that begins with a dot or an apostrophe for a request.
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        writeln!(page, "{guard}{}", line.replace('\\', "\\e").replace('-', "\\-"))?;
    }
    writeln!(page, ".fi")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_manual_has_every_command_and_the_exit_statuses() {
        let text = String::from_utf8(super::manual().unwrap()).unwrap();
        for part in
            ["SLACKWATER MOUNT", "SLACKWATER UMOUNT", "SLACKWATER DOCTOR", "dirty\\-expire", "not mounted", "EXAMPLES"]
        {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }
}
