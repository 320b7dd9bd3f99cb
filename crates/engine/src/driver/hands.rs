//! The executor of a job: local threads or remote movers, and the queue to them.
use dmover_journal::MoversElsewhere;
use dmover_model::{Fatal, Limit, Notice};
use dmover_plan::bottleneck::Profile;
use std::sync::Arc;
use std::time::Duration;

use super::Job;
use crate::chunk_movers::{ChunkDesk, ChunkMovers};
use crate::concurrency_driver::Allowance;
use crate::context::Engine;
use crate::fleet::{Fleet, JobOffer};
use crate::mover_pool::MoverPool;
use crate::queue::{Dispatch, LocalQueue};
use crate::report::HostWork;

/// A mover in this process that makes no progress for this long has lost its task.
const LEASE: Duration = Duration::from_mins(30);

/// The movers of a job.
pub(super) enum Executor {
    /// Threads of this process, and movers at other hosts that copy chunks.
    Here(Box<MoverPool>, Option<ChunksElsewhere>),
    /// Remote movers.
    Elsewhere(Arc<dyn Fleet>),
}

/// Movers at other hosts that copy chunks of a pass. Dropping it ends that.
pub(super) struct ChunksElsewhere {
    movers: Arc<dyn ChunkMovers>,
    desk: Arc<ChunkDesk>,
}

impl ChunksElsewhere {
    pub fn hold(&self, held: bool) {
        self.desk.hold(held);
    }
}

impl Drop for ChunksElsewhere {
    fn drop(&mut self) {
        self.movers.end();
    }
}

impl Executor {
    /// Movers of this process, or a fleet, and the queue to them. If the job is stopped before there is a fleet, movers
    /// of this process take its place but are not started.
    pub fn of(
        job: &Job,
        offer: Option<JobOffer>,
        engine: &Arc<Engine>,
        (allowance, on_record): (Allowance, bool),
        note: Option<MoversElsewhere>,
    ) -> Result<(Self, Arc<dyn Dispatch>), Fatal> {
        if let Some((fleets, offer)) = job.fleets.as_ref().zip(offer.clone()) {
            match fleets.open(offer, Arc::clone(engine)) {
                Ok(fleet) => {
                    fleet.know(Notice::RecheckSet(engine.doubts.earlier.all()));
                    return Ok((Self::Elsewhere(Arc::clone(&fleet)), fleet));
                }
                Err(error) if engine.is_stopping() => {
                    tracing::info!(%error, "stopped before the job started");
                }
                Err(error) => return Err(error),
            }
        }
        let queue = LocalQueue::new(LEASE);
        let queue = Arc::new(if on_record { queue.on_record() } else { queue });
        let (movers, gate) = (Arc::clone(&queue), Arc::clone(&queue));
        let crew = MoverPool::new(Arc::clone(engine), movers, gate, allowance);
        let chunks = job.chunk_movers.as_ref().zip(offer).map(|(chunk_movers, offer)| {
            let desk =
                Arc::new(ChunkDesk::new((Arc::clone(engine), Arc::clone(&queue)), offer, note));
            chunk_movers.begin(Arc::clone(&desk));
            ChunksElsewhere { movers: Arc::clone(chunk_movers), desk }
        });
        Ok((Self::Here(Box::new(crew), chunks), queue))
    }

    /// Whether no mover has a task in progress. Valid at the end.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Here(crew, chunks) => {
                let settled = |chunks: &ChunksElsewhere| chunks.desk.is_settled();
                !crew.has_left_any() && chunks.as_ref().is_none_or(settled)
            }
            Self::Elsewhere(fleet) => fleet.is_settled(),
        }
    }

    /// Whether a thread of this process hangs in a system call and may still write.
    pub fn has_left_any_here(&self) -> bool {
        matches!(self, Self::Here(crew, _) if crew.has_left_any())
    }

    /// What other hosts have copied.
    pub fn other_hosts(&self) -> Vec<HostWork> {
        match self {
            Self::Here(_, Some(chunks)) => chunks.desk.work(),
            _ => Vec::new(),
        }
    }

    /// The limit over the whole job.
    pub fn limit(&mut self) -> Limit {
        match self {
            Self::Here(crew, _) => crew.summary(),
            Self::Elsewhere(fleet) => fleet.limit().unwrap_or_else(|| Profile::default().limit()),
        }
    }
}
