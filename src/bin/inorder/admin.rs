//! What operators do to a consumer: restart, skip, disable, enable, reset, unregister, accept-pruned, repartition.

use inorder::{Admin, Change, Inorder, Reset as Place, Start, Target};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::failure::{Exit, Failure};
use crate::options::Options;
use crate::question::Consent;
use crate::screen::Screen;
use crate::words::{count, plain};

/// A consumer as `inorder status` names it.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    text: String,
    pub(crate) target: Target,
}

/// `name`, `name@instance`, `name/partition`, `name@instance/partition`: names hold neither @ nor /.
pub(crate) fn named(text: &str) -> Result<Named, String> {
    let (rest, partition) = match text.split_once('/') {
        Some((rest, partition)) => {
            let partition =
                partition.parse().map_err(|_| format!("{partition:?} is not the number of a partition"))?;
            (rest, Some(partition))
        }
        None => (text, None),
    };
    let (name, instance) = rest.split_once('@').unwrap_or((rest, ""));
    if name.is_empty() {
        return Err(
            "a consumer is named name, name@instance, name/partition or name@instance/partition".into()
        );
    }
    let mut target = Target::consumer(name).instance(instance);
    if let Some(partition) = partition {
        target = target.partition(partition);
    }
    Ok(Named { text: text.to_owned(), target })
}

/// Whom an action is done to, who does it, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Action {
    /// As `inorder status` shows it: name, name@instance, or name/partition for one partition of it
    #[arg(value_name = "CONSUMER", value_parser = named)]
    consumer: Named,
    /// End the session that holds the consumer, instead of giving up; its pass is rolled back and delivered again
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    note: Note,
}

/// What the audit trail keeps.
#[derive(Debug, clap::Args)]
pub(crate) struct Note {
    /// Why; kept in the audit trail
    #[arg(long, value_name = "TEXT")]
    why: Option<String>,
    #[command(flatten)]
    by: By,
}

/// Who acts.
#[derive(Debug, clap::Args)]
pub(crate) struct By {
    /// Who; kept in the audit trail. Default: the user of this machine
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

impl By {
    pub(crate) fn admin(&self, log: &Inorder) -> Admin {
        let user =
            || ["USER", "LOGNAME"].iter().find_map(|v| std::env::var(v).ok().filter(|user| !user.is_empty()));
        match self.by.clone().or_else(user) {
            Some(who) => log.admin().by(who),
            None => log.admin(),
        }
    }
}

impl Note {
    pub(crate) fn admin(&self, log: &Inorder) -> Admin {
        let admin = self.by.admin(log);
        match &self.why {
            Some(why) => admin.because(why),
            None => admin,
        }
    }
}

impl Action {
    async fn admin(&self, options: &Options, verb: &str) -> Result<Admin, Failure> {
        let admin = self.note.admin(&options.connect_to_log(verb).await?);
        Ok(if self.force { admin.force() } else { admin })
    }

    /// Nobody is asked about a consumer that is not there.
    async fn ask(&self, admin: &Admin, consent: &Consent, question: &str) -> Result<(), Failure> {
        admin.consumer(self.target()).await?;
        consent.ask(question).await
    }

    fn target(&self) -> Target {
        self.consumer.target.clone()
    }
}

/// Let a dead consumer try again, at the event at which it died
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder restart search-index
  inorder restart search-index/3 --why 'the index is back'")]
pub(crate) struct Restart {
    #[command(flatten)]
    action: Action,
}

impl Restart {
    pub(crate) async fn run(&self, options: &Options, screen: &Screen) -> Result<(), Failure> {
        let admin = self.action.admin(options, "restart").await?;
        tell(screen, &admin.restart(self.action.target()).await?)
    }
}

/// Pass over the event at which a consumer stands
///
/// Only if it is the event that you name: the one that the consumer would be given next. A dead letter keeps it, so that
/// `inorder dead-letters retry` can have it delivered after all. The consumer then goes on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder skip revenue-per-day --event 17000 --why 'test order'
  inorder skip revenue-per-day --event f0e58b37-c935-5d44-a0f2-f7af7ae3d9c5 --why 'test order'")]
pub(crate) struct Skip {
    /// As `inorder status` shows it: name, name@instance, or name/partition for one partition of it
    #[arg(value_name = "CONSUMER", value_parser = named)]
    consumer: Named,
    /// The event, by its id or by its event_id
    #[arg(long, value_name = "ID|UUID", value_parser = event_named)]
    event: EventName,
    /// Why; kept in the audit trail
    #[arg(long, value_name = "TEXT")]
    why: String,
    #[command(flatten)]
    by: By,
    /// End the session that holds the consumer, instead of giving up; its pass is rolled back
    #[arg(long)]
    force: bool,
}

/// An event, in the log or everywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EventName {
    Id(i64),
    EventId(Uuid),
}

pub(crate) fn event_named(text: &str) -> Result<EventName, String> {
    // As people read and copy it: 17,000.
    if let Ok(id) = text.replace(',', "").parse() {
        return Ok(EventName::Id(id));
    }
    text.parse()
        .map(EventName::EventId)
        .map_err(|_| "an event is named by its id, a number, or its event_id, a UUID".into())
}

impl Skip {
    pub(crate) async fn run(&self, options: &Options, screen: &Screen) -> Result<(), Failure> {
        let log = options.connect_to_log("skip").await?;
        let event_id = match self.event {
            EventName::EventId(event_id) => event_id,
            EventName::Id(id) => find(&log, id).await?,
        };
        let mut admin = self.by.admin(&log).because(&self.why);
        if self.force {
            admin = admin.force();
        }
        let skipped = admin.skip_poison(self.consumer.target.clone(), event_id).await.map_err(|refused| {
            let refused = Failure::from(refused);
            match self.event {
                EventName::EventId(_) => refused,
                EventName::Id(id) => refused.calling(&format!("event {event_id}"), &format!("event {id}")),
            }
        })?;
        tell(screen, &[skipped])
    }
}

/// The name by which the event with this id is known everywhere.
pub(crate) async fn find(log: &Inorder, id: i64) -> Result<Uuid, Failure> {
    let missing = || {
        Failure::new(
            Exit::Refused,
            format!("there is no event {id} in the log, or it is beyond the safe head"),
        )
    };
    let before = id.checked_sub(1).filter(|before| *before >= 0).ok_or_else(missing)?;
    let found = log.read(before, 1).await?;
    found.first().filter(|event| event.id() == id).map(inorder::Event::event_id).ok_or_else(missing)
}

/// Stop a consumer until it is enabled
///
/// It stays where it is, and no longer holds back prune.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder disable search-index --why 'index is being rebuilt'
  inorder disable cache@node-1")]
pub(crate) struct Disable {
    #[command(flatten)]
    action: Action,
}

impl Disable {
    pub(crate) async fn run(&self, options: &Options, screen: &Screen) -> Result<(), Failure> {
        let admin = self.action.admin(options, "disable").await?;
        tell(screen, &admin.disable(self.action.target()).await?)
    }
}

/// Let a disabled or expired consumer run again, from where it stands
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder enable search-index")]
pub(crate) struct Enable {
    #[command(flatten)]
    action: Action,
}

impl Enable {
    pub(crate) async fn run(&self, options: &Options, screen: &Screen) -> Result<(), Failure> {
        let admin = self.action.admin(options, "enable").await?;
        tell(screen, &admin.enable(self.action.target()).await?)
    }
}

/// Move a consumer: the next event that it is given is the first above a place
///
/// Backwards, events are delivered again; what an effect or queued consumer did stays done, unless --repeat-effects says that it may be
/// done again. Forwards, events are passed over, and a dead letter keeps the range. Never beyond the safe head.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder reset revenue-per-day --to beginning     replay everything
  inorder reset revenue-per-day --to 16999         the next event is 17000
  inorder reset receipts --to 16999 --repeat-effects
  inorder reset search-index --to head --yes       only what comes from now on")]
pub(crate) struct Reset {
    #[command(flatten)]
    action: Action,
    /// `beginning`, `head`, or the id above which it goes on
    #[arg(long, value_name = "PLACE", value_parser = place)]
    to: Start,
    /// Accept that events above the place were pruned
    #[arg(long)]
    accept_pruned: bool,
    /// Let an effect or queued consumer run again what it has done above the place
    #[arg(long)]
    repeat_effects: bool,
    /// Refuse to repeat more effects of a partition than this
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, requires = "repeat_effects", value_parser = clap::value_parser!(i32).range(0..))]
    max_effects: i32,
    #[command(flatten)]
    consent: Consent,
}

fn place(text: &str) -> Result<Start, String> {
    match text {
        "beginning" => Ok(Start::Beginning),
        "head" => Ok(Start::Head),
        id => {
            id.replace(',', "").parse().map(Start::After).map_err(|_| {
                "a place is `beginning`, `head`, or the id above which the consumer goes on".into()
            })
        }
    }
}

impl Reset {
    pub(crate) async fn run(&self, options: &Options, screen: &Screen) -> Result<(), Failure> {
        let admin = self.action.admin(options, "reset").await?;
        let place = match self.to {
            Start::Beginning => "the beginning".to_owned(),
            Start::Head => "the head".to_owned(),
            Start::After(id) => count(id),
        };
        let effects = match self.repeat_effects {
            true => "Mails, payments and calls above it are done a second time.",
            false => {
                "What it reads again it does again, but for effects that are done; what it passes over it never does."
            }
        };
        let question = format!("Reset {} to {place}? {effects}", self.action.consumer.text);
        self.action.ask(&admin, &self.consent, &question).await?;
        let mut reset = Place::to(self.to).max_effects(self.max_effects);
        if self.accept_pruned {
            reset = reset.accept_pruned();
        }
        if self.repeat_effects {
            reset = reset.repeat_effects();
        }
        tell(screen, &admin.reset(self.action.target(), reset).await?)
    }
}

/// Remove a consumer, or one instance of it, with all its partitions
///
/// Its position is forgotten, its unfinished dead letters are discarded, and so is what waits in its queue; what it did stays in the
/// ledger. A dispatcher that still has it registers it anew at its next start.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder unregister search-index
  inorder unregister cache@node-1 --yes --why 'node-1 is gone'")]
pub(crate) struct Unregister {
    #[command(flatten)]
    action: Action,
    #[command(flatten)]
    consent: Consent,
}

impl Unregister {
    pub(crate) async fn run(&self, options: &Options, screen: &Screen) -> Result<(), Failure> {
        let admin = self.action.admin(options, "unregister").await?;
        let question = format!("Unregister {}? Its position is forgotten.", self.action.consumer.text);
        self.action.ask(&admin, &self.consent, &question).await?;
        tell(screen, &admin.unregister(self.action.target()).await?)
    }
}

/// Accept that events which a consumer had not read were pruned
///
/// It runs again, behind them; a dead letter keeps the range.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder accept-pruned search-index")]
pub(crate) struct AcceptPruned {
    #[command(flatten)]
    action: Action,
    #[command(flatten)]
    consent: Consent,
}

impl AcceptPruned {
    pub(crate) async fn run(&self, options: &Options, screen: &Screen) -> Result<(), Failure> {
        let admin = self.action.admin(options, "accept-pruned").await?;
        let question =
            format!("Let {} go on without the events that were pruned unread?", self.action.consumer.text);
        self.action.ask(&admin, &self.consent, &question).await?;
        tell(screen, &admin.accept_pruned(self.action.target()).await?)
    }
}

/// Split a consumer into another number of partitions
///
/// All its rows must stand at the same position and wait for nothing. Raise the number in the application as well, with its revision.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  inorder repartition search-index 8")]
pub(crate) struct Repartition {
    #[command(flatten)]
    action: Action,
    /// How many
    #[arg(value_parser = clap::value_parser!(i32).range(1..=1_024))]
    partitions: i32,
}

impl Repartition {
    pub(crate) async fn run(&self, options: &Options, screen: &Screen) -> Result<(), Failure> {
        let admin = self.action.admin(options, "repartition").await?;
        tell(screen, &admin.repartition(self.action.target(), self.partitions).await?)
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    changes: &'a [Change],
}

/// Tells what was done, row by row.
pub(crate) fn tell(screen: &Screen, changes: &[Change]) -> Result<(), Failure> {
    if screen.is_json() {
        return Ok(screen.json(&Answer { changes })?);
    }
    for change in changes {
        screen.line(in_words(change))?;
    }
    Ok(())
}

/// `revenue-per-day: dead at 16,999 → idle at 17,000`.
pub(crate) fn in_words(change: &Change) -> String {
    let mut name = change.consumer.clone();
    if !change.instance.is_empty() {
        name.push_str(&format!("@{}", change.instance));
    }
    let partitions =
        [&change.after, &change.before].into_iter().find_map(|row| row.get("partitions")?.as_i64());
    if partitions.is_some_and(|n| n > 1) {
        name.push_str(&format!("/{}", change.partition));
    }
    let before = standing(&change.before).unwrap_or_else(|| "not there".into());
    let after = standing(&change.after).unwrap_or_else(|| "gone".into());
    plain(&format!("{name}: {before} → {after}"))
}

/// Of a state row or a dead letter.
pub(crate) fn standing(row: &Value) -> Option<String> {
    let at = |word: &Value| Some(format!("{} at {}", word.as_str()?, count(row.get("position")?.as_i64()?)));
    match (row.get("status"), row.get("state")) {
        (Some(status), _) => at(status),
        (None, Some(state)) => Some(format!("dead letter {} {}", row.get("id")?, state.as_str()?)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_is_named_as_status_shows_it() {
        let shown = |text: &str| named(text).map(|n| n.target.to_string()).unwrap_or_else(|e| e);
        assert_eq!(shown("a"), r#"consumer "a""#);
        assert_eq!(shown("a/3"), r#"consumer "a" partition 3"#);
        assert_eq!(shown("a@node-1/0"), r#"consumer "a" instance "node-1" partition 0"#);
        assert!(shown("a/b").contains("not the number of a partition"));
        assert!(shown("@x").starts_with("a consumer is named"));
    }

    #[test]
    fn an_event_is_named_by_number_or_uuid_and_a_place_by_word_or_number() {
        assert!(matches!(event_named("17,000"), Ok(EventName::Id(17_000))));
        assert!(matches!(event_named("f0e58b37-c935-5d44-a0f2-f7af7ae3d9c5"), Ok(EventName::EventId(_))));
        assert!(event_named("order.placed").is_err());
        assert_eq!(place("head"), Ok(Start::Head));
        assert_eq!(place("16,999"), Ok(Start::After(16_999)));
        assert!(place("end").is_err());
    }
}
