//! Prototypes of the header, and signatures of the exported functions in the form that C has for them.

use std::collections::BTreeMap;

/// Types of Rust and of C. The longer ones come first.
const TYPES: [(&str, &str); 12] = [
    ("*mut *mut ", "** "),
    ("*const c_void", "const void *"),
    ("*mut c_void", "void *"),
    ("*const c_char", "const char *"),
    ("Cache", "slackwater_engine"),
    ("Volume", "slackwater_volume"),
    ("File", "slackwater_file"),
    ("c_int", "int"),
    ("i64", "int64_t"),
    ("u32", "uint32_t"),
    ("u64", "uint64_t"),
    ("usize", "size_t"),
];

/// Each function with the types of its arguments and of its result.
pub(crate) type Functions = BTreeMap<String, (Vec<String>, String)>;

/// The functions that a header declares.
pub(crate) fn declared(header: &str) -> Functions {
    let mut functions = Functions::new();
    let code: String = header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    for statement in code.split(';').filter(|statement| statement.contains('(') && statement.contains("slackwater_")) {
        let statement = statement.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join(" ");
        let (before, arguments) = statement.split_once('(').unwrap();
        let at = before.find("slackwater_").unwrap();
        let arguments = arguments.trim_end_matches(')').split(',').filter(|argument| *argument != "void");
        // The name of an argument follows its type.
        let of = |argument: &str| {
            argument.trim_end_matches(|letter: char| letter.is_alphanumeric() || letter == '_').to_owned()
        };
        let arguments = arguments.map(|argument| compact(&of(argument.trim()))).collect();
        let result = compact(before[..at].trim_start_matches("extern \"C\" {"));
        functions.insert(before[at..].trim().to_owned(), (arguments, result));
    }
    functions
}

/// The functions that a Rust source exports.
pub(crate) fn exported(source: &str) -> Functions {
    let mut functions = Functions::new();
    for part in source.split("extern \"C\" fn ").skip(1) {
        let (name, rest) = part.split_once('(').unwrap();
        let (arguments, rest) = rest.split_once(')').unwrap();
        let result = rest.split_once("-> ").unwrap().1.split_once(" {").unwrap().0;
        let arguments = arguments.split(',').filter_map(|argument| Some(in_c(argument.split_once(": ")?.1)));
        functions.insert(name.to_owned(), (arguments.collect(), in_c(result)));
    }
    functions
}

fn in_c(rust: &str) -> String {
    let mut text = rust.trim().to_owned();
    for (of_rust, of_c) in TYPES {
        text = text.replace(of_rust, of_c);
    }
    // `*mut T` is `T *`.
    for stars in ["** ", "*mut "] {
        if let Some(pointee) = text.strip_prefix(stars) {
            text = format!("{pointee}{}", if stars == "** " { "**" } else { "*" });
        }
    }
    compact(&text)
}

fn compact(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace(" *", "*")
}
