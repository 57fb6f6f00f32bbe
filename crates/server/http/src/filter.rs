//! Common code of the connection filters.

/// Implements `AsyncWrite` for a read filter by delegating to its field `stream`.
macro_rules! write_through {
    ($filter:ident) => {
        const _: () = {
            use std::io::{IoSlice, Result};
            use std::pin::Pin;
            use std::task::{Context, Poll};

            impl<S: tokio::io::AsyncWrite + Unpin> tokio::io::AsyncWrite for $filter<S> {
                fn poll_write(
                    self: Pin<&mut Self>,
                    cx: &mut Context<'_>,
                    bytes: &[u8],
                ) -> Poll<Result<usize>> {
                    Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
                }

                fn poll_write_vectored(
                    self: Pin<&mut Self>,
                    cx: &mut Context<'_>,
                    parts: &[IoSlice<'_>],
                ) -> Poll<Result<usize>> {
                    Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
                }

                fn is_write_vectored(&self) -> bool {
                    self.stream.is_write_vectored()
                }

                fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
                    Pin::new(&mut self.get_mut().stream).poll_flush(cx)
                }

                fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
                    Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
                }
            }
        };
    };
}

pub(crate) use write_through;
