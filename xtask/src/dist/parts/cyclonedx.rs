//! The list of parts (software bill of materials) as CycloneDX 1.5.

use serde_json::{Value, json};

use super::{COMMAND, Part, Parts};

impl Parts {
    /// The list as JSON text, for this version of the command.
    pub(in crate::dist) fn cyclonedx(&self, version: &str, time: &str) -> String {
        let components: Vec<_> = self.parts.values().filter(|part| part.name != COMMAND).map(component).collect();
        let reference = |id: &String| self.parts.get(id).map(url);
        let needed = |part: &Part| {
            let needs: Vec<_> = part.needs.iter().filter_map(reference).collect();
            json!({ "ref": url(part), "dependsOn": needs })
        };
        let dependencies: Vec<_> = self.parts.values().map(needed).collect();
        let command = json!({
            "type": "application",
            "name": "slackwater",
            "version": version,
            "bom-ref": self.parts.values().find(|part| part.name == COMMAND).map(url),
            "licenses": [{ "expression": "MIT OR Apache-2.0" }],
        });
        let list = json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": { "timestamp": time, "component": command },
            "components": components,
            "dependencies": dependencies,
        });
        format!("{list:#}\n")
    }
}

/// The identity of a crate in such lists.
fn url(part: &Part) -> String {
    format!("pkg:cargo/{}@{}", part.name, part.version.replace('+', "%2B"))
}

fn component(part: &Part) -> Value {
    let mut component = json!({
        "type": "library",
        "name": part.name,
        "version": part.version,
        "bom-ref": url(part),
        "purl": url(part),
        "licenses": [{ "expression": part.licence }],
    });
    if let Some(checksum) = &part.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}
