//! The user of a TCP client on this machine, from the kernel's socket diagnostics: `sock_diag(7)`.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

/// `SOCK_DIAG_BY_FAMILY`: one socket, or an error.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
/// Size of `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = 56;
/// Place of `idiag_uid` in `struct inet_diag_msg`.
const USER_AT: usize = 64;

/// A socket to ask the kernel for the users of other sockets.
pub(crate) struct SocketUsers(OwnedFd);

impl SocketUsers {
    /// Opens the socket. `None` if the kernel does not offer it.
    pub(crate) fn open() -> Option<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG)).ok().map(Self)
    }

    /// The user whose socket has the address `client` and is connected to `server`. `None` if this network namespace has no
    /// such socket.
    pub(crate) fn of(&self, client: SocketAddr, server: SocketAddr) -> Option<u32> {
        send(&self.0, &request(client, server)?, SendFlags::empty()).ok()?;
        // The kernel answers before `send` returns.
        let mut answer = [0; 512];
        let (_, len) = recv(&self.0, &mut answer[..], RecvFlags::empty()).ok()?;
        user(&answer[..len.min(answer.len())])
    }
}

fn request(client: SocketAddr, server: SocketAddr) -> Option<Vec<u8>> {
    let (from, to) = (client.ip().to_canonical(), server.ip().to_canonical());
    let family = match (from, to) {
        (IpAddr::V4(_), IpAddr::V4(_)) => AddressFamily::INET,
        (IpAddr::V6(_), IpAddr::V6(_)) => AddressFamily::INET6,
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    };
    let address = |ip: IpAddr| {
        let mut bytes = [0; 16];
        match ip {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes.copy_from_slice(&ip.octets()),
        }
        bytes
    };
    let mut message = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
    message.extend(((HEADER_BYTES + REQUEST_BYTES) as u32).to_ne_bytes());
    message.extend([BY_FAMILY, REQUEST].map(u16::to_ne_bytes).as_flattened());
    message.extend([0; 8]);
    let tcp = rustix::net::ipproto::TCP.as_raw().get() as u8;
    message.extend([family.as_raw() as u8, tcp, 0, 0]);
    message.extend(u32::MAX.to_ne_bytes()); // every state
    message.extend([client.port(), server.port()].map(u16::to_be_bytes).as_flattened());
    message.extend([from, to].map(address).as_flattened());
    message.extend([0; 4]); // every interface
    message.extend([u8::MAX; 8]); // any cookie
    Some(message)
}

fn user(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    (kind == BY_FAMILY).then_some(())?;
    Some(u32::from_ne_bytes(*answer.get(HEADER_BYTES + USER_AT..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_user_of_a_client_on_this_machine_is_known() {
        let users = SocketUsers::open().unwrap();
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let to = if address.starts_with("[::1]") { "::1" } else { "127.0.0.1" };
            let client = TcpStream::connect((to, port)).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let own = accepted.local_addr().unwrap();
            assert_eq!(users.of(peer, own), Some(rustix::process::geteuid().as_raw()), "{address}");
            drop(client);
        }
        let nobody = "127.0.0.1:1".parse().unwrap();
        assert_eq!(users.of(nobody, nobody), None);
    }
}
