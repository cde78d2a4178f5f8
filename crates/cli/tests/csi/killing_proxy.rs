//! A proxy before a plugin that kills it after every answer, before the client has the answer.
//!
//! It passes frames of HTTP/2 on. When the plugin ends an answer, the proxy holds that frame back, kills the plugin with
//! SIGKILL, starts another one, and tells the client to use a new connection for its next call (GOAWAY).

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::plugin::Plugin;

const HEAD: usize = 9;
const HEADERS: u8 = 1;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;

pub(crate) struct KillingProxy {
    pub(crate) endpoint: PathBuf,
    /// The plugin; `None` after the end.
    plugin: Arc<Mutex<Option<Plugin>>>,
    kills: Arc<AtomicU32>,
}

impl KillingProxy {
    pub(crate) fn before(plugin: Plugin, endpoint: &Path) -> Self {
        let listener = UnixListener::bind(endpoint).unwrap();
        let (plugin, kills) = (Arc::new(Mutex::new(Some(plugin))), Arc::new(AtomicU32::new(0)));
        let (served, counted) = (Arc::clone(&plugin), Arc::clone(&kills));
        // It ends with the test program.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (plugin, kills) = (Arc::clone(&served), Arc::clone(&counted));
                // A client that closes its connection is not a failure.
                thread::spawn(move || drop(serve(&client, &plugin, &kills)));
            }
        });
        Self { endpoint: endpoint.to_path_buf(), plugin, kills }
    }

    /// How often it has killed the plugin.
    pub(crate) fn kills(&self) -> u32 {
        self.kills.load(Ordering::Relaxed)
    }

    /// Ends the plugin that lives now.
    #[track_caller]
    pub(crate) fn end(self) {
        self.plugin.lock().unwrap().take().unwrap().end();
    }
}

impl Drop for KillingProxy {
    fn drop(&mut self) {
        // After a failure, the thread that listens would keep it alive.
        if let Ok(mut plugin) = self.plugin.lock() {
            plugin.take();
        }
    }
}

/// Serves one connection, until the first answer has ended.
fn serve(client: &UnixStream, plugin: &Mutex<Option<Plugin>>, kills: &AtomicU32) -> io::Result<()> {
    let ended = || io::Error::from(io::ErrorKind::NotConnected);
    // While the plugin is replaced, this waits.
    let mut server = UnixStream::connect(&plugin.lock().unwrap().as_ref().ok_or_else(ended)?.endpoint)?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let mut client = client;
    loop {
        let mut head = [0; HEAD];
        server.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut frame = vec![0; HEAD + length];
        frame[..HEAD].copy_from_slice(&head);
        server.read_exact(&mut frame[HEAD..])?;
        if head[3] == HEADERS && head[4] & END_STREAM != 0 {
            plugin.lock().unwrap().as_mut().ok_or_else(ended)?.kill_and_restart();
            kills.fetch_add(1, Ordering::Relaxed);
            let stream = &head[5..];
            client.write_all(&[&[0, 0, 8, GOAWAY, 0, 0, 0, 0, 0], stream, &[0; 4]].concat())?;
            client.write_all(&frame)?;
            return client.shutdown(Shutdown::Write);
        }
        client.write_all(&frame)?;
    }
}
