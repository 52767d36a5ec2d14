//! Bodies on their way into the workspace. Each is checked before it is there.

use super::{Engine, Phase};
use crate::{
    Error, Result,
    bucket::{Bodies, Bucket},
    diff::Step,
    disk::Refused,
    retry::jitter,
    sparse::{self, Decoder, Malformed, Part},
    sums::Hasher,
    tree::{File, Node, Place},
    workspace::Put,
};
use bytes::Bytes;
use futures::StreamExt;
use seawall_api::{ErrorKind, files::FileName};
use std::{collections::VecDeque, sync::Mutex, time::Duration};
use tokio::sync::mpsc;

const AT_ONCE: usize = 4;
/// Bytes between two bodies that are cheaper to read over than to ask again for.
const MAX_GAP: u64 = 128 << 10;
/// What one request asks for.
const MAX_RANGE: u64 = 8 << 20;
/// Bodies up to this size are checked before anything of them is sent.
const WHOLE: u64 = 4 << 20;
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(100);

/// What came of the steps.
#[derive(Debug, Default)]
pub struct CarriedOut {
    pub refused: Vec<Refused>,
    pub bytes: u64,
    /// Bodies that the bucket does not have as they should be. The rest was brought.
    pub damaged: Vec<(FileName, String)>,
}

#[derive(Debug, Clone)]
struct Wanted {
    path: FileName,
    file: File,
    place: Place,
}

/// Bodies that lie together in an object.
#[derive(Debug)]
struct Range {
    object: std::sync::Arc<str>,
    start: u64,
    end: u64,
    bodies: Vec<Wanted>,
}

impl Engine<'_> {
    pub(super) async fn carry_out(&self, steps: Vec<Step>) -> Result<CarriedOut> {
        let mut done = CarriedOut::default();
        if steps.is_empty() {
            return Ok(done);
        }
        let is_body = |step: &Step| matches!(step, Step::File { .. });
        let (files, others): (Vec<_>, Vec<_>) = steps.into_iter().partition(is_body);
        let last = finish_later(&others);
        // Links and the like come after directories, and so may files: they only need those.
        if !others.is_empty() {
            done.refused = self.workspace.apply(others).await.map_err(|error| error.during("changing"))?;
        }
        let (wanted, empty) = wanted(files)?;
        let bytes = wanted.iter().map(|one| one.file.size).sum();
        done.bytes = wanted.iter().map(|one| one.place.stored(one.file.size)).sum();
        self.progress.phase(Phase::Downloading { files: (wanted.len() + empty.len()) as u64, bytes });
        let queue = Mutex::new(VecDeque::from(ranges(wanted)));
        let workers = (0..AT_ONCE).map(|number| {
            let empty = if number == 0 { empty.clone() } else { Vec::new() };
            self.worker(&queue, empty)
        });
        for (refused, damaged) in futures::future::try_join_all(workers).await? {
            done.refused.extend(refused);
            done.damaged.extend(damaged);
        }
        if !last.is_empty() {
            done.refused.extend(self.workspace.apply(last).await.map_err(|error| error.during("changing"))?);
        }
        Ok(done)
    }

    /// Takes ranges until there are none, and sends what is in them on one way into the workspace.
    async fn worker(
        &self,
        queue: &Mutex<VecDeque<Range>>,
        empty: Vec<(FileName, Node)>,
    ) -> Result<(Vec<Refused>, Vec<(FileName, String)>)> {
        let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop_front();
        let mut range = next();
        if range.is_none() && empty.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let (sender, receiver) = mpsc::channel(32);
        let mut damaged = Vec::new();
        let bad = &mut damaged;
        let feeding = async move {
            for (path, node) in empty {
                send(&sender, Put::Begin(path, node)).await?;
                send(&sender, Put::End).await?;
            }
            while let Some(one) = range {
                self.fetch(one, &sender, bad).await?;
                range = next();
            }
            Ok::<_, Fed>(())
        };
        let putting = self.workspace.put(receiver);
        let (fed, put) = futures::future::join(feeding, putting).await;
        // Why the workspace stopped taking says more than that it did.
        let refused = put.map_err(|error| error.during("writing"))?;
        match fed {
            Ok(()) => Ok((refused, damaged)),
            Err(Fed::Failed(error)) => Err(error),
            Err(Fed::HungUp) => Err(Error::unavailable("the sandbox hung up").during("writing")),
        }
    }

    async fn fetch(
        &self,
        range: Range,
        sender: &mpsc::Sender<Put>,
        damaged: &mut Vec<(FileName, String)>,
    ) -> Result<(), Fed> {
        let mut reader = Reader::new(&*self.versions.bucket, &range.object, range.start, range.end);
        for wanted in range.bodies {
            let path = wanted.path.clone();
            match self.fetch_one(&mut reader, wanted, sender).await {
                Err(Fed::Failed(error)) if error.kind() == ErrorKind::Invalid => {
                    // One damaged file keeps nobody from the others.
                    damaged.push((path, error.to_string()));
                    reader.start_over();
                }
                done => done?,
            }
        }
        Ok(())
    }

    async fn fetch_one(
        &self,
        reader: &mut Reader<'_>,
        wanted: Wanted,
        sender: &mpsc::Sender<Put>,
    ) -> Result<(), Fed> {
        reader.skip_to(wanted.place.offset).await?;
        let node = Node::File(wanted.file.clone());
        if wanted.file.size <= WHOLE {
            let body = self.whole(reader, &wanted).await?;
            send(sender, Put::Begin(wanted.path, node)).await?;
            for part in body {
                send(sender, Put::Data(part)).await?;
            }
        } else {
            send(sender, Put::Begin(wanted.path.clone(), node)).await?;
            if let Err(error) = self.streamed(reader, &wanted, sender).await {
                // Nothing of it may stay, whatever is wrong with it.
                send(sender, Put::Abort).await?;
                return Err(error);
            }
        }
        send(sender, Put::End).await
    }

    /// A body whole in memory, checked. Once more where it is not what it should be: the way may be to blame.
    async fn whole(&self, reader: &mut Reader<'_>, wanted: &Wanted) -> Result<Vec<Bytes>> {
        self.progress.moved(wanted.file.size);
        if let Some(body) = self.try_whole(reader, wanted).await? {
            return Ok(body);
        }
        let Place { object, offset, .. } = &wanted.place;
        let end = wanted.place.end(wanted.file.size);
        let mut again = Reader::new(&*self.versions.bucket, object, *offset, end);
        self.try_whole(&mut again, wanted).await?.ok_or_else(|| damaged(wanted))
    }

    /// None where it is not what it should be.
    async fn try_whole(&self, reader: &mut Reader<'_>, wanted: &Wanted) -> Result<Option<Vec<Bytes>>> {
        let Wanted { path, file, place } = wanted;
        let stored = reader.take(place.stored(file.size)).await.map_err(|error| error.on(path))?;
        let body = decoded(stored, file, place).ok();
        Ok(body.filter(|body| agrees(body, file)))
    }

    async fn streamed(
        &self,
        reader: &mut Reader<'_>,
        wanted: &Wanted,
        sender: &mpsc::Sender<Put>,
    ) -> Result<(), Fed> {
        let Wanted { path, file, place } = wanted;
        let mut decoder = Decoder::new(file.size, place.sparse.as_deref());
        let (mut hasher, mut left) = (Hasher::default(), place.stored(file.size));
        while left > 0 {
            let mut stored = reader.part(left).await.map_err(|error| error.on(path))?;
            left -= stored.len() as u64;
            while let Some(part) = decoder.next(&mut stored).map_err(|_| damaged(wanted))? {
                for bytes in pieces(part) {
                    hasher.update(&bytes);
                    self.progress.moved(bytes.len() as u64);
                    send(sender, Put::Data(bytes)).await?;
                }
            }
        }
        match decoder.is_done() && hasher.finish().agree(&file.sums) {
            true => Ok(()),
            false => Err(damaged(wanted).into()),
        }
    }
}

/// The last steps: directories get their time when all is in them, the deepest first.
fn finish_later(steps: &[Step]) -> Vec<Step> {
    let mut last = Vec::new();
    for step in steps {
        if let Step::Dir { path, node } = step {
            last.push(Step::Finish { path: path.clone(), node: node.clone() });
        }
    }
    last.reverse();
    last
}

/// Why feeding ended early.
enum Fed {
    Failed(Error),
    HungUp,
}

impl From<Error> for Fed {
    fn from(error: Error) -> Self {
        Fed::Failed(error)
    }
}

async fn send(sender: &mpsc::Sender<Put>, put: Put) -> Result<(), Fed> {
    sender.send(put).await.map_err(|_| Fed::HungUp)
}

/// The bytes of a part. Zeros come without a copy.
fn pieces(part: Part) -> impl Iterator<Item = Bytes> {
    let (data, mut zeros) = match part {
        Part::Data(bytes) => (Some(bytes), 0),
        Part::Zeros(count) => (None, count),
    };
    data.into_iter().chain(std::iter::from_fn(move || {
        let next = sparse::zeros(zeros);
        zeros -= next.len() as u64;
        (!next.is_empty()).then_some(next)
    }))
}

/// A small body, from what is stored of it.
fn decoded(stored: Vec<Bytes>, file: &File, place: &Place) -> Result<Vec<Bytes>, Malformed> {
    let Some(sparse) = place.sparse.as_deref() else { return Ok(stored) };
    let (mut decoder, mut body) = (Decoder::new(file.size, Some(sparse)), Vec::new());
    for mut bytes in stored {
        while let Some(part) = decoder.next(&mut bytes)? {
            body.extend(pieces(part));
        }
    }
    if decoder.is_done() { Ok(body) } else { Err(Malformed) }
}

fn agrees(body: &[Bytes], file: &File) -> bool {
    let mut hasher = Hasher::default();
    for part in body {
        hasher.update(part);
    }
    hasher.finish().agree(&file.sums)
}

fn damaged(wanted: &Wanted) -> Error {
    let object = &wanted.place.object;
    Error::invalid(format!(
        "its body in {object} is not what was stored; `seawall verify` tells what is damaged, and an older version \
         may have the file"
    ))
    .during("downloading")
    .on(&wanted.path)
}

/// Files with bodies, and files without a byte.
type Sorted = (Vec<Wanted>, Vec<(FileName, Node)>);

fn wanted(steps: Vec<Step>) -> Result<Sorted> {
    let (mut wanted, mut empty) = (Vec::new(), Vec::new());
    for step in steps {
        let Step::File { path, node } = step else { continue };
        match node {
            Node::File(file) if file.size > 0 => {
                let place = file.place.clone();
                let place =
                    place.ok_or_else(|| Error::invalid("the version has no body for it").on(&path))?;
                wanted.push(Wanted { path, file, place });
            }
            node => empty.push((path, node)),
        }
    }
    Ok((wanted, empty))
}

/// Requests that bring all bodies: what lies together is asked for together.
fn ranges(mut wanted: Vec<Wanted>) -> Vec<Range> {
    wanted.sort_by(|a, b| a.place.cmp(&b.place));
    let mut ranges: Vec<Range> = Vec::new();
    for one in wanted {
        let (start, end) = (one.place.offset, one.place.end(one.file.size));
        match ranges.last_mut() {
            Some(range)
                if range.object == one.place.object
                    && start >= range.end
                    && start - range.end <= MAX_GAP
                    && end - range.start <= MAX_RANGE =>
            {
                range.end = end;
                range.bodies.push(one);
            }
            _ => ranges.push(Range { object: one.place.object.clone(), start, end, bodies: vec![one] }),
        }
    }
    ranges
}

/// A range of an object. A connection that breaks is taken up where it was.
struct Reader<'a> {
    bucket: &'a dyn Bucket,
    object: &'a str,
    position: u64,
    end: u64,
    stream: Option<Bodies>,
    ahead: Bytes,
}

impl<'a> Reader<'a> {
    fn new(bucket: &'a dyn Bucket, object: &'a str, position: u64, end: u64) -> Reader<'a> {
        Reader { bucket, object, position, end, stream: None, ahead: Bytes::new() }
    }

    /// What was read ahead is not trusted any more.
    fn start_over(&mut self) {
        (self.stream, self.ahead) = (None, Bytes::new());
    }

    async fn skip_to(&mut self, offset: u64) -> Result<()> {
        if self.stream.is_none() {
            self.position = self.position.max(offset);
        }
        while self.position < offset {
            self.part(offset - self.position).await?;
        }
        Ok(())
    }

    async fn take(&mut self, size: u64) -> Result<Vec<Bytes>> {
        let (mut parts, mut left) = (Vec::new(), size);
        while left > 0 {
            let part = self.part(left).await?;
            left -= part.len() as u64;
            parts.push(part);
        }
        Ok(parts)
    }

    /// The next bytes, at least one and at most so many.
    async fn part(&mut self, most: u64) -> Result<Bytes> {
        if self.ahead.is_empty() {
            self.ahead = self.next().await?;
        }
        let size = usize::try_from(most).unwrap_or(usize::MAX).min(self.ahead.len());
        self.position += size as u64;
        Ok(self.ahead.split_to(size))
    }

    async fn next(&mut self) -> Result<Bytes> {
        let mut pause = PAUSE;
        for tries in 1.. {
            let error = match self.try_next().await {
                Ok(part) => return Ok(part),
                Err(error) => error,
            };
            self.stream = None;
            if tries >= TRIES || !error.is_retryable() {
                return Err(match error.kind() {
                    ErrorKind::NotFound => Error::not_found(
                        "its body is gone from the bucket; it may have been pruned meanwhile: sync again",
                    ),
                    _ => error,
                }
                .during("downloading"));
            }
            tokio::time::sleep(jitter(pause)).await;
            pause *= 2;
        }
        Err(Error::unavailable("it did not come"))
    }

    async fn try_next(&mut self) -> Result<Bytes> {
        if self.stream.is_none() {
            self.stream = Some(self.bucket.get(self.object, Some(self.position..self.end)).await?);
        }
        let Some(stream) = &mut self.stream else { return Err(Error::unavailable("it did not come")) };
        loop {
            match stream.next().await {
                Some(Ok(part)) if part.is_empty() => {}
                Some(Ok(part)) => return Ok(part),
                Some(Err(error)) => return Err(error),
                None => return Err(Error::unavailable("the store sent less than it has")),
            }
        }
    }
}
