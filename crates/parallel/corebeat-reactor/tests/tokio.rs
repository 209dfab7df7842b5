//! A crate on the traits of Tokio runs over the streams, in tasks of LPEL.

use bytes::Bytes;
use corebeat_lpel::{Runtime, spawn_async};
use corebeat_reactor::{TcpListener, TcpStream, attach};
use h2::RecvStream;
use http::{Request, Response};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Returns a stream whose peer has reset the connection.
fn reset() -> TcpStream {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    let linger = Some(Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&peer, linger).unwrap();
    drop(peer);
    let mut stream = TcpStream::from_std(stream).unwrap();
    let why = std::io::Read::read(&mut stream, &mut [0; 1]).unwrap_err();
    assert_eq!(why.kind(), std::io::ErrorKind::ConnectionReset);
    stream
}

#[test]
fn end_of_data_after_a_reset_is_no_error() {
    let mut context = Context::from_waker(Waker::noop());
    let (mut one, mut other) = (reset(), reset());
    let of_tokio = tokio::io::AsyncWrite::poll_shutdown(Pin::new(&mut one), &mut context);
    let of_futures = futures_util::AsyncWrite::poll_close(Pin::new(&mut other), &mut context);
    for ended in [of_tokio, of_futures] {
        assert!(matches!(ended, Poll::Ready(Ok(()))), "{ended:?}");
    }
}

/// Receives a body, and lets the peer send more.
async fn receive(mut body: RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(part) = body.data().await {
        let part = part.unwrap();
        body.flow_control().release_capacity(part.len()).unwrap();
        all.extend_from_slice(&part);
    }
    all
}

/// Serves one connection: answers each request by its body.
async fn serve(stream: TcpStream) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(request) = connection.accept().await {
        let (request, mut respond) = request.unwrap();
        spawn_async(async move {
            let body = receive(request.into_body()).await;
            let mut answer = respond.send_response(Response::new(()), false).unwrap();
            answer.send_data(body.into(), true).unwrap();
        });
    }
}

#[test]
fn h2_exchanges_requests_over_streams() {
    const REQUESTS: usize = 20;
    const BYTES: usize = 200_000;
    // Futures of h2 are large without optimisation.
    let builder = Runtime::builder().workers(2).stack_size(1 << 20);
    let runtime = attach(builder).build().unwrap();
    runtime
        .run(|| {
            let mut listener = TcpListener::bind(([127, 0, 0, 1], 0).into()).unwrap();
            let address = listener.get_ref().local_addr().unwrap();
            let server =
                spawn_async(async move { serve(listener.accept_async().await.unwrap()).await });
            let client = spawn_async(async move {
                let stream = TcpStream::connect_async(address).await.unwrap();
                let (client, connection) = h2::client::handshake(stream).await.unwrap();
                let driver = spawn_async(async move { connection.await.unwrap() });
                let mut client = client.ready().await.unwrap();
                let mut answers = Vec::new();
                for n in 0..REQUESTS {
                    let request = Request::post("http://localhost/").body(()).unwrap();
                    let (answer, mut body) = client.send_request(request, false).unwrap();
                    body.send_data(Bytes::from(vec![n as u8; BYTES]), true).unwrap();
                    // Each in a task: the answers share the window of the connection.
                    answers.push(spawn_async(async move {
                        receive(answer.await.unwrap().into_body()).await
                    }));
                }
                for (n, answer) in answers.into_iter().enumerate() {
                    let body = answer.await.unwrap();
                    assert!(body == vec![n as u8; BYTES], "request {n}");
                }
                drop(client);
                driver.await.unwrap();
            });
            client.join().unwrap();
            server.join().unwrap();
        })
        .unwrap();
}
