package main

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/cluster/broker"
	"github.com/gpreempt/gpreempt/internal/cli"
)

// Processes on the GPUs that are no clients are found by NVIDIA's management library. This program is without C, so `gpreempt` asks it,
// in a process that lives while there are clients.

// againAfter is when it is tried again after it failed.
const againAfter = time.Minute

// watchOthers tells the server again and again who works on the GPUs, until it has ended. It says once why it cannot.
func watchOthers(server *broker.Server, log zerolog.Logger, ended <-chan struct{}) {
	var from *cli.Lister
	var next time.Time
	said := ""
	ticker := time.NewTicker(cli.UsersEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			from.End()
			return
		case <-ticker.C:
		}
		if server.InUse() == 0 {
			from.End()
			from = nil
			continue
		}
		if time.Now().Before(next) {
			continue
		}
		users, err := map[string][]cli.User(nil), error(nil)
		if from == nil {
			from, err = cli.StartLister()
		}
		if err == nil {
			users, err = from.Ask()
		}
		server.SetWorkers(workers(users, "/proc"))
		if err == nil {
			continue
		}
		from.End()
		from, next = nil, time.Now().Add(againAfter)
		if said != err.Error() {
			said = err.Error()
			log.Warn().Err(err).Msg("processes without gpreempt are not looked for: best-effort programs get little beside them")
		}
	}
}

// workers are the PIDs of those that had work, or may have had: where that is not known, all. A process that is not here, since it is in
// another PID namespace or has ended, cannot be told from a client.
func workers(users map[string][]cli.User, proc string) map[string][]int32 {
	all := map[string][]int32{}
	for gpu, on := range users {
		for _, u := range on {
			if u.Works() && u.IsHere(proc) {
				all[gpu] = append(all[gpu], int32(u.PID))
			}
		}
	}
	return all
}
