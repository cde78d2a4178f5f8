//! The only writer of a volume: who has it, and how another process takes it over.
//!
//! Writers announce themselves by *claims*, the objects `writer/NUMBER.json`. A claim is made by a PUT that fails if the
//! object exists; the one with the highest number counts. The fence is not the claim but the epoch of SlateDB: opening
//! it for writing makes every older writer's next commit fail. Claims decide who may open it.
//!
//! ```text
//! acquire: read the newest claim -> free, left behind, or to be taken over -> PUT NUMBER + 1, create-only
//! open SlateDB: a new epoch; older writers fail from here on
//! confirm: is this still the newest claim? If not, close SlateDB again, with nothing written
//! every HEARTBEAT: confirm, and rewrite the claim with the time and the last commit
//! release: after SlateDB was closed, rewrite the claim as released
//! ```
//!
//! # Invariants
//! W1. After *every* open of SlateDB for writing, also after an error, the claim is confirmed before the first batch is
//!     written. So a process that lost its claim writes nothing, even if its open fenced the process that has it now.
//! W2. Hence a process that was fenced, and whose claim is still the newest, was fenced by one that wrote nothing. It may
//!     open SlateDB again and repeat its batch. If its claim is not the newest, the volume is lost to it for good.
//! W3. The newest claim is never removed, only rewritten by its holder, so numbers do not begin again. It goes
//!     with the whole volume only ([`crate::delete()`]).
//! W4. No decision compares clocks. Times in claims are for people.
//! W5. A claim is taken without asking only if its holder is known to have ended: a process of this boot that is gone
//!     with its keeper, or one of an earlier boot of this machine. Or the claimant is the successor of the holder: it has
//!     the same keeper, which starts a successor only when its predecessor changes nothing any more.
//! W6. `--take-over` applies to the claim that was newest when the claimant first looked. One that appears meanwhile
//!     belongs to another claimant, and is respected. So of several that take over at once, one wins.

mod claim;
mod process;
mod record;

pub(crate) use claim::{Claim, ClaimError, Claims, FOLDER, HEARTBEAT};
