//! `slackwater man`: the manual page, made from the definition of the command line.

use std::io::{self, Write};

use clap::CommandFactory;

use crate::arguments::Arguments;
use crate::exit::Failure;

/// Prints the page, with a section per command.
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
    }
    page.render_extra_section(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_manual_has_every_command_and_the_exit_statuses() {
        let text = String::from_utf8(super::manual().unwrap()).unwrap();
        for part in
            ["SLACKWATER MOUNT", "SLACKWATER UMOUNT", "SLACKWATER DOCTOR", "dirty\\-expire", "not mounted", "Examples"]
        {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }
}
