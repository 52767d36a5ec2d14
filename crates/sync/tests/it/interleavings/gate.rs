// The gate in front of the bucket and the database: every call waits until it is let through.

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Call {
    Create(String),
    Put(String),
    Delete(String),
    Get(String, String),
    List(String, Option<String>),
    Folders,
    /// A look for versions of the older layout. There are none.
    Older,
    /// The database is asked whose a number is.
    Admit(String),
}

/// Who calls, and what.
type Label = (usize, Call);

impl Call {
    fn changes(&self) -> Option<&str> {
        match self {
            Call::Create(key) | Call::Put(key) | Call::Delete(key) => Some(key),
            _ => None,
        }
    }

    fn sees(&self, key: &str) -> bool {
        match self {
            Call::Create(own) | Call::Put(own) | Call::Delete(own) | Call::Get(own, _) => own == key,
            Call::List(prefix, after) => {
                key.starts_with(prefix.as_str()) && after.as_deref().is_none_or(|after| key > after)
            }
            Call::Folders => !key.starts_with('.'),
            Call::Older | Call::Admit(_) => false,
        }
    }

    /// Whether it makes a difference which of the two comes first.
    fn matters_to(&self, other: &Call) -> bool {
        let admissions = matches!((self, other), (Call::Admit(one), Call::Admit(other)) if one == other);
        admissions
            || self.changes().is_some_and(|key| other.sees(key))
            || other.changes().is_some_and(|key| self.sees(key))
    }
}

/// What is done at once, and where.
#[derive(Debug, Clone, Copy)]
struct Stage {
    /// Who pushes: a path, and a body. A body that starts with `to ` is the target of a link, and needs no pack.
    pushes: &'static [(&'static str, &'static str)],
    prunes: bool,
    /// All clocks show the same, so that all want one name for their manifests.
    same_time: bool,
    /// The store refuses nothing, and a lease decides.
    careless: bool,
    /// Nobody knows yet what the store can do.
    probes: bool,
    /// A push of the first body died when its pack was stored.
    left: bool,
}

impl Stage {
    fn bucket(&self) -> Arc<MemoryBucket> {
        Arc::new(if self.careless { MemoryBucket::careless() } else { MemoryBucket::default() })
    }

    fn pruner(&self) -> usize {
        self.pushes.len()
    }

    fn actors(&self) -> usize {
        self.pushes.len() + usize::from(self.prunes)
    }

    /// What must never be stored over.
    fn is_guarded(&self, key: &str) -> bool {
        !key.starts_with('.') || key.starts_with(COMMITS)
    }
}

/// What an actor knows, as far as it decides what it does next.
#[derive(Debug, Default, Hash)]
struct Told {
    answers: u64,
    /// Of deletes, whose order among themselves says nothing.
    deletes: u64,
    /// What outlives a lost race: the packs that it knows, and how many records it tried to write.
    packs: BTreeSet<String>,
    records: u32,
    looked: bool,
}

#[derive(Debug)]
struct Waiting {
    label: Label,
    go: oneshot::Sender<()>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: Vec<Waiting>,
    /// What is in the bucket: hashes of bodies.
    objects: BTreeMap<String, u64>,
    told: Vec<Told>,
    broken: Vec<String>,
}

/// Where calls wait.
#[derive(Debug)]
struct Gate {
    stage: Stage,
    inner: Mutex<Inner>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// All that waits, but for calls that were given up.
    fn waiting(&self) -> Vec<Label> {
        let mut inner = self.lock();
        inner.waiting.retain(|waiting| !waiting.go.is_canceled());
        let mut labels: Vec<Label> = inner.waiting.iter().map(|waiting| waiting.label.clone()).collect();
        labels.sort();
        labels
    }

    fn let_through(&self, label: &Label) {
        let mut inner = self.lock();
        let at = inner.waiting.iter().position(|waiting| waiting.label == *label).unwrap();
        let waiting = inner.waiting.remove(at);
        drop(inner);
        waiting.go.send(()).unwrap();
    }

    fn told(&self, actor: usize, call: &Call, answer: &str) {
        let prunes = actor == self.stage.pruner();
        let mut inner = self.lock();
        let told = &mut inner.told[actor];
        match call {
            // What is there under such a key, and that it is there, follows from what was told before.
            Call::Get(key, _) if prunes || key.starts_with(COMMITS) => {}
            Call::List(prefix, _) if prunes && !prefix.starts_with('.') => {}
            Call::Older => {}
            Call::Delete(_) => told.deletes = told.deletes.wrapping_add(hash(call)),
            // Whoever lost a race starts anew.
            Call::Create(key) if key.starts_with(COMMITS) && answer == "Ok(false)" => {
                told.answers = hash(call);
            }
            _ => told.answers = hash(&(told.answers, call, answer)),
        }
        match call {
            Call::Put(key) | Call::Get(key, _) if key.starts_with(PACKS) => {
                told.packs.insert(key.clone());
            }
            Call::Create(key) if key.starts_with(COMMITS) => told.records += 1,
            Call::List(prefix, _) if prefix == COMMITS => told.looked = false,
            _ => {}
        }
    }

    fn stored(&self, key: &str, body: u64) {
        let mut inner = self.lock();
        // Whoever finishes what another began stores the same.
        let before = inner.objects.insert(key.to_owned(), body);
        if before.is_some_and(|before| before != body) && self.stage.is_guarded(key) {
            inner.broken.push(format!("{key} was stored over"));
        }
    }
}

/// An actor's place at the gate.
#[derive(Debug, Clone)]
struct Seat {
    gate: Arc<Gate>,
    actor: usize,
}

impl Seat {
    /// Waits until it may, does it, and notes the answer.
    async fn serve<T: Debug>(&self, mut call: Call, work: impl Future<Output = Result<T>>) -> Result<T> {
        let (go, turn) = oneshot::channel();
        {
            let mut inner = self.gate.lock();
            // A prune looks for older versions first, and then for all that is there.
            if call == Call::Folders && !std::mem::replace(&mut inner.told[self.actor].looked, true) {
                call = Call::Older;
            }
            inner.waiting.push(Waiting { label: (self.actor, call.clone()), go });
        }
        turn.await.unwrap();
        let answer = work.await;
        self.gate.told(self.actor, &call, &format!("{answer:?}"));
        answer
    }
}

/// The bucket as one actor has it.
#[derive(Debug)]
struct Scheduled {
    inner: Arc<MemoryBucket>,
    seat: Seat,
}

#[async_trait]
impl Bucket for Scheduled {
    fn place(&self) -> String {
        self.inner.place()
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<bool> {
        let (call, body_hash) = (Call::Create(key.to_owned()), hash(&body));
        let made = self.seat.serve(call, self.inner.create(key, body)).await?;
        if made {
            self.seat.gate.stored(key, body_hash);
        }
        Ok(made)
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        let (call, body_hash) = (Call::Put(key.to_owned()), hash(&body));
        self.seat.serve(call, self.inner.put(key, body)).await?;
        self.seat.gate.stored(key, body_hash);
        Ok(())
    }

    async fn upload(&self, key: &str, _: Bodies) -> Result<()> {
        Err(Error::invalid("nothing large is pushed here").on(key))
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bodies> {
        let call = Call::Get(key.to_owned(), format!("{range:?}"));
        let whole = async { bucket::collect(self.inner.get(key, range).await?, u64::MAX).await };
        let body = self.seat.serve(call, whole).await?;
        Ok(futures::stream::once(async move { Ok(body) }).boxed())
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Object>> {
        let call = Call::List(prefix.to_owned(), after.map(str::to_owned));
        self.seat.serve(call, self.inner.list(prefix, after)).await
    }

    async fn folders(&self, prefix: &str) -> Result<Vec<String>> {
        self.seat.serve(Call::Folders, self.inner.folders(prefix)).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.seat.serve(Call::Delete(key.to_owned()), self.inner.delete(key)).await?;
        self.seat.gate.lock().objects.remove(key);
        Ok(())
    }
}

/// The database that decides, as one actor has it.
struct Decides(Arc<dyn Turnstile>, Seat);

#[async_trait]
impl Turnstile for Decides {
    async fn admit(&self, name: &str, who: &str) -> Result<bool> {
        self.1.serve(Call::Admit(name.to_owned()), self.0.admit(name, who)).await
    }
}
