//! What a site's settings mean for workers, said before anything is asked for. Pure.

use std::time::Duration;

use longhaul_slurm::{ClusterConfig, Partition};

use crate::settings::Settings;

/// What to say of a cluster to whoever asks it for workers with these settings; hostile until escaped.
pub(super) fn advice(cluster: &ClusterConfig, partitions: &[Partition], settings: &Settings) -> Vec<String> {
    let mut said = Vec::new();
    let grace = settings.worker.grace;
    let kill_wait = cluster.kill_wait.unwrap_or(Duration::MAX);
    if grace.to_std() > kill_wait {
        said.push(format!(
            "Slurm kills what it cancels {} s after it was told to end (KillWait), and workers have {} s for that \
             (`worker.grace` in the settings): what they still hold then is lost with their nodes' disks, or cleared \
             away by the next worker there",
            kill_wait.as_secs(),
            grace.to_std().as_secs()
        ));
    }
    if cluster.preempt_sends_signal {
        return said;
    }
    for (name, pool) in &settings.slurm.pools {
        let named: Vec<&str> = pool.partition.iter().flat_map(|names| names.split(',')).collect();
        let ours = |partition: &&Partition| {
            if named.is_empty() { partition.is_default } else { named.contains(&partition.name.as_str()) }
        };
        let may_go = |partition: &&Partition| !partition.preempt_mode.eq_ignore_ascii_case("off");
        for partition in partitions.iter().filter(ours).filter(may_go) {
            said.push(format!(
                "workers of pool {name} may be preempted in partition {}, and are then told so by TERM alone, however \
                 long `warning` is: this site does not set `preempt_send_user_signal`",
                partition.name
            ));
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(name: &str, preempt_mode: &str, is_default: bool) -> Partition {
        Partition {
            name: name.to_owned(),
            is_default,
            is_up: true,
            max_time: None,
            default_time: None,
            preempt_mode: preempt_mode.to_owned(),
            groups: Vec::new(),
        }
    }

    #[test]
    fn a_site_that_gives_a_worker_less_time_than_it_takes_is_told_of_and_no_other() {
        let settings = crate::settings::load(None).expect("the defaults");
        let partitions = [partition("batch", "OFF", true), partition("low", "REQUEUE", false)];
        let cluster = |seconds| ClusterConfig { kill_wait: Some(Duration::from_secs(seconds)), ..Default::default() };
        assert_eq!(advice(&cluster(30), &partitions, &settings), [] as [&str; 0]);
        assert_eq!(advice(&ClusterConfig::default(), &partitions, &settings), [] as [&str; 0]);
        let short = advice(&cluster(5), &partitions, &settings);
        assert!(short.len() == 1 && short[0].contains("5 s after") && short[0].contains("have 30 s"), "{short:?}");
    }

    #[test]
    fn preemption_without_a_warning_is_told_of_for_the_pools_that_it_meets() {
        let mut settings = crate::settings::load(None).expect("the defaults");
        let partitions = [partition("batch", "OFF", true), partition("low", "REQUEUE", false)];
        let said = |settings: &Settings, sends| {
            let cluster = ClusterConfig { preempt_sends_signal: sends, ..Default::default() };
            advice(&cluster, &partitions, settings)
        };
        assert_eq!(said(&settings, false), [] as [&str; 0], "nothing is preempted in the default partition");
        for pool in settings.slurm.pools.values_mut() {
            pool.partition = Some("batch,low".to_owned());
        }
        let told = said(&settings, false);
        assert!(told.len() == 1 && told[0].contains("pool default") && told[0].contains("partition low"), "{told:?}");
        assert_eq!(said(&settings, true), [] as [&str; 0]);
    }
}
