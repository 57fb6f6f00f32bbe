use super::fields::Fields;
use super::writer::FrameWriter;
use super::{FrameError, Pooler, Problem, TierKinds, WIRE_VERSION};

const MAGIC: [u8; 4] = *b"PSTK";

/// HELLO, the first frame that the engine sends on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    pub wire_version: u16,
    pub pid: u32,
}

/// STAGE: the engine has completed one stage of its start-up.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    pub name: String,
    pub seconds: f64,
    pub detail: String,
}

/// READY: the engine accepts requests within these limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    pub max_model_len: u32,
    pub max_num_seqs: u32,
    pub max_num_batched_tokens: u32,
    pub max_queue: u32,
    pub block_size: u32,
    pub num_blocks: u32,
    pub kv_bytes: u64,
    pub vocab_size: u32,
    pub eos_token_ids: Vec<u32>,
    pub cache_identity: [u8; 32],
    pub numerics: String,
    /// Instruction set or accelerator.
    pub device: String,
    pub threads: u32,
    /// Tiers behind the pool of KV blocks.
    pub kv_tiers: TierKinds,
    pub pooler: Pooler,
}

/// FATAL: the engine exits after this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fatal {
    pub message: String,
}

impl Hello {
    /// Rejects a different version before reading the rest, because the HELLO of another version
    /// may have other fields.
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let magic_error = |magic| FrameError {
            frame: "HELLO",
            field: "magic",
            offset: 0,
            problem: Problem::Magic(magic),
        };
        let magic = f.array::<4>("magic")?;
        if magic != MAGIC {
            return Err(magic_error(magic));
        }
        let wire_version = f.u16("version")?;
        if wire_version != WIRE_VERSION {
            let problem = Problem::Version(wire_version);
            return Err(FrameError {
                frame: "HELLO",
                field: "version",
                offset: 4,
                problem,
            });
        }
        Ok(Self {
            wire_version,
            pid: f.u32("pid")?,
        })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) -> Result<(), FrameError> {
        w.array(&MAGIC);
        w.u16(self.wire_version);
        w.u32(self.pid);
        Ok(())
    }
}

impl Stage {
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            name: f.string("name")?,
            seconds: f.f64("seconds")?,
            detail: f.string("detail")?,
        })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) -> Result<(), FrameError> {
        w.bytes(self.name.as_bytes());
        w.f64(self.seconds);
        w.bytes(self.detail.as_bytes());
        Ok(())
    }
}

impl Ready {
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            max_model_len: f.u32("max_model_len")?,
            max_num_seqs: f.u32("max_num_seqs")?,
            max_num_batched_tokens: f.u32("max_num_batched_tokens")?,
            max_queue: f.u32("max_queue")?,
            block_size: f.u32("block_size")?,
            num_blocks: f.u32("num_blocks")?,
            kv_bytes: f.u64("kv_bytes")?,
            vocab_size: f.u32("vocab_size")?,
            eos_token_ids: f.u32_list("eos_token_ids")?,
            cache_identity: f.array("cache identity")?,
            numerics: f.string("numerics")?,
            device: f.string("device")?,
            threads: f.u32("threads")?,
            kv_tiers: TierKinds::read(f)?,
            pooler: Pooler::read(f)?,
        })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) -> Result<(), FrameError> {
        w.u32(self.max_model_len);
        w.u32(self.max_num_seqs);
        w.u32(self.max_num_batched_tokens);
        w.u32(self.max_queue);
        w.u32(self.block_size);
        w.u32(self.num_blocks);
        w.u64(self.kv_bytes);
        w.u32(self.vocab_size);
        w.u32_list(&self.eos_token_ids);
        w.array(&self.cache_identity);
        w.bytes(self.numerics.as_bytes());
        w.bytes(self.device.as_bytes());
        w.u32(self.threads);
        w.u8(self.kv_tiers.bits());
        self.pooler.write(w);
        Ok(())
    }
}

impl Fatal {
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            message: f.string("message")?,
        })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) -> Result<(), FrameError> {
        w.bytes(self.message.as_bytes());
        Ok(())
    }
}
