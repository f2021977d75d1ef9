//! Consumers that keep what they are handed.

use inorder::{Consumer, Dispatcher, DispatcherBuilder, Inorder, Registered};
use tokio_postgres::Client;
use uuid::Uuid;

use super::connect;

/// The name of the consumer that most tests make do with.
const ALL: &str = "all";

/// A log whose consumers keep what they are handed in the table `delivered`, in the transaction of the pass.
pub(crate) struct Recording {
    pub(crate) log: Inorder,
    url: String,
}

impl Recording {
    /// In a database that has the schema.
    pub(crate) async fn on(url: &str) -> Recording {
        Recording::over(Inorder::connect(url).await.unwrap_or_else(|e| panic!("{e:?}")), url).await
    }

    /// The dispatchers go through `log`; the tests look at the database behind `url`.
    pub(crate) async fn over(log: Inorder, url: &str) -> Recording {
        let table = "CREATE TABLE IF NOT EXISTS public.delivered \
            (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, consumer text, id bigint, event_id uuid)";
        connect(url).await.batch_execute(table).await.unwrap();
        Recording { log, url: url.to_owned() }
    }

    /// The same, whose dispatchers go through another `log`.
    pub(crate) fn through(self, log: Inorder) -> Recording {
        Recording { log, ..self }
    }

    /// A consumer that keeps what it is handed.
    pub(crate) fn consumer(name: &str) -> Consumer {
        let of = name.to_owned();
        Consumer::batch_fn(name, move |events, tx| {
            let name = of.clone();
            Box::pin(async move {
                let ids: Vec<i64> = events.iter().map(inorder::Event::id).collect();
                let event_ids: Vec<Uuid> = events.iter().map(inorder::Event::event_id).collect();
                let insert = "INSERT INTO public.delivered (consumer, id, event_id) \
                    SELECT $1, e.id, e.event_id FROM unnest($2::bigint[], $3::uuid[]) AS e (id, event_id)";
                tx.execute(insert, &[&name, &ids, &event_ids]).await?;
                Ok(())
            })
        })
    }

    /// A dispatcher with one such consumer.
    pub(crate) fn builder(&self) -> DispatcherBuilder {
        Dispatcher::builder(&self.log).consumer(Recording::consumer(ALL))
    }

    /// One such consumer, registered.
    pub(crate) async fn register(&self) -> Registered {
        self.builder().build().unwrap().register().await.unwrap_or_else(|e| panic!("{e:?}"))
    }

    /// The ids that were delivered, in the order of their delivery.
    pub(crate) async fn ids(&self) -> Vec<i64> {
        self.ids_of(ALL).await
    }

    pub(crate) async fn ids_of(&self, consumer: &str) -> Vec<i64> {
        let select = "SELECT id FROM public.delivered WHERE consumer = $1 ORDER BY n";
        self.client().await.query(select, &[&consumer]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    /// A session of its own for each question: the server may have been away meanwhile.
    async fn client(&self) -> Client {
        connect(&self.url).await
    }

    /// From now on it is looked at in the database behind this URL.
    pub(crate) fn look_at(&mut self, url: &str) {
        url.clone_into(&mut self.url);
    }

    /// What was delivered is what is in the log, in its order, up to the last byte of the names.
    pub(crate) async fn assert_complete(&self) {
        let delivered = "SELECT id, event_id FROM public.delivered WHERE consumer = $1 ORDER BY n";
        let client = self.client().await;
        let delivered = client.query(delivered, &[&ALL]).await.unwrap();
        let committed = "SELECT id, event_id FROM inorder.events ORDER BY id";
        let committed = client.query(committed, &[]).await.unwrap();
        let events = |rows: &[tokio_postgres::Row]| -> Vec<(i64, Uuid)> {
            rows.iter().map(|row| (row.get(0), row.get(1))).collect()
        };
        assert_eq!(events(&delivered), events(&committed));
    }
}
