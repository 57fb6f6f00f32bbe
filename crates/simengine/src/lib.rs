//! An engine with modelled timing, on the real HTTP and the real wire.
