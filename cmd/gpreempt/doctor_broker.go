package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file says whether there is a broker, what it lets programs have, and how each process was found: by it, by files, or not at all.

const brokerAnswers = 2 * time.Second // programs wait 200 ms

func (d *doctor) checkBroker() {
	directory := d.config.Segment.Broker
	if directory == "" {
		d.say("broker", ok, `none is used: segment.broker = ""`, "")
		return
	}
	wanted := configs.Priority{On: true} // the highest level
	if p, err := configs.ParsePriority(os.Getenv("GPREEMPT_PRIORITY")); err == nil && p.On {
		wanted = p
	}
	socket, granted := "", wire.Policy{}
	err := member.Reach(directory, func(path string) (err error) {
		socket = path
		granted, err = join.Query(path, wanted.Level, segment.Version, brokerAnswers)
		return err
	})
	var refused join.RefusedError
	switch {
	case errors.Is(err, member.ErrNone):
		d.sayNoBroker(directory)
	case errors.As(err, &refused):
		advice := "ask whoever keeps its policy"
		if refused.Reason == wire.RefusedVersion {
			advice = "restart gpreemptd, or install the version of gpreempt that it has; programs are refused until then, and find each other by files"
		}
		notTaken, off := member.Refused(err)
		d.broker = notTaken || off // it answers
		d.say("broker", warned, socket+": "+refused.Error(), advice)
	case err != nil:
		d.say("broker", warned, fmt.Sprintf("%s: %v", socket, err), "restart gpreemptd: each program waits 200 ms for it when it starts, and goes on without")
	default:
		d.sayBroker(socket, wanted, &granted)
	}
}

// sayNoBroker says why no socket leads to a broker.
func (d *doctor) sayNoBroker(directory string) {
	for _, path := range join.Sockets(directory) {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, unix.EACCES):
			d.say("broker", warned, path+" is not for this user", "programs of this user find each other by files; is there a group that may use it?")
		case err == nil && info.Mode()&os.ModeSocket != 0:
			d.say("broker", warned, path+": nobody listens", "start gpreemptd (systemctl start gpreemptd.socket), or remove the socket")
		default:
			continue
		}
		return
	}
	d.say("broker", ok, "none in "+directory+": programs of one user find each other by files", "")
}

func (d *doctor) sayBroker(socket string, wanted configs.Priority, granted *wire.Policy) {
	level := configs.Priority{On: true, Level: int(granted.Level)}
	gets := []string{fmt.Sprintf("a program that wants %s gets %s", wanted, level)}
	if granted.Paused == 1 {
		gets = append(gets, "and is paused")
	}
	for _, limit := range []struct {
		text  string
		value uint32
		unit  float64
	}{{"a share of at least %g", granted.Share, 1e6}, {"a share of at most %g", granted.ShareMax, 1e6}, {"windows of at most %g ms", granted.MaxHoldUs, 1e3}, {"at most %g MB on a GPU", granted.MemoryMB, 1},
		{"at most %g%% of a GPU's memory", granted.MemoryPart, 1e4}} {
		if limit.value != 0 {
			gets = append(gets, fmt.Sprintf(limit.text, float64(limit.value)/limit.unit))
		}
	}
	if granted.Objective.Says() {
		gets = append(gets, "the objective "+granted.Objective.String())
	}
	if granted.Per != wire.PerProcess {
		gets = append(gets, "divided among all programs of the "+granted.Per.String()+" that has them")
	}
	d.broker = true
	about := fmt.Sprintf("%s answers (messages %d, pages %d): %s", socket, wire.Version, segment.Version, strings.Join(gets, ", "))
	if level != wanted && os.Getenv("GPREEMPT_PRIORITY") != "" {
		d.say("broker", warned, about, "the policy, or the socket that this user can reach, allows no more than "+configs.Priority{On: true, Level: int(granted.Best)}.String())
		return
	}
	d.say("broker", ok, about, "")
}

// checkWorlds warns of GPUs with members of both worlds: they do not know of each other. Of other users' processes root alone hears.
func (d *doctor) checkWorlds() {
	if !d.broker {
		return
	}
	byBroker, err := member.Snapshots(d.config.Segment.Broker)
	if err != nil { // it answered a moment ago
		d.say("broker", warned, err.Error(), "")
		return
	}
	byFile := d.filesOfAll()
	for _, s := range byBroker {
		var others []string
		for _, file := range byFile {
			if file.GPU == s.GPU {
				others = append(others, ownersOf(file.Peers)...)
			}
		}
		if len(others) > 0 && len(s.Peers) > 0 {
			d.say("broker", warned, fmt.Sprintf("%s: processes that found each other by files (%s) and by the broker (%s) do not know of each other", s.GPU, strings.Join(others, ", "), strings.Join(ownersOf(s.Peers), ", ")),
				"those by files join once the broker takes them: their log says why it does not")
		}
	}
}

// snapshots are this user's segments, by files and of the broker. A broker that does not answer is not asked again.
func (d *doctor) snapshots() ([]segment.Snapshot, error) {
	config := d.config
	if !d.broker {
		config.Segment.Broker = ""
	}
	return readSegments(config)
}

// filesOfAll are the segments of this user and its group, and for root the segments of all users.
func (d *doctor) filesOfAll() []segment.Snapshot {
	base := d.config.Segment.Directory
	all, err := segment.ReadAll(base, d.config.Segment.Group)
	if err != nil || os.Geteuid() != 0 {
		return all // checkDirectory has said why not
	}
	read := []string{segment.Directory(base, 0)}
	if _, gid, err := segmentDirectory(d.config); err == nil && gid >= 0 {
		read = append(read, segment.GroupDirectory(base, gid))
	}
	folders, err := filepath.Glob(filepath.Join(base, "gpreempt-*"))
	if err != nil {
		return all
	}
	for _, folder := range folders {
		info, err := os.Lstat(folder)
		if err != nil || !info.IsDir() || slices.Contains(read, folder) {
			continue
		}
		if of, err := segment.SnapshotsIn(folder); err == nil { // else it went just now
			all = append(all, of...)
		}
	}
	return all
}

func ownersOf(peers []segment.Peer) (list []string) {
	for i := range peers {
		list = append(list, pidText(int64(peers[i].Owner)))
	}
	return list
}

// checkOthers says who is on the GPUs beside the processes under the library.
func (d *doctor) checkOthers() {
	if len(d.devices) == 0 {
		return
	}
	users, err := askUsers()
	if err != nil {
		as := warned
		if d.simulated() {
			as = ok
		}
		d.say("others", as, "which other processes use the GPUs is not known: "+err.Error(), "")
		return
	}
	snapshots, err := d.snapshots()
	if err != nil {
		return // checkDirectory or checkBroker has said it
	}
	for _, v := range d.devices {
		on, known := users[v.uuid]
		if !known {
			d.say("others", ok, v.uuid+": which other processes use it is not known", "")
			continue
		}
		list := others(on, snapshots, "/proc")
		if d.broker {
			list = explain(list, d.config)
		}
		text := sayOthers(list)
		if text == "" {
			d.say("others", ok, v.uuid+": no other process uses it", "")
			continue
		}
		d.say("others", warned, v.uuid+": processes use it that are not known to those under the library: "+text,
			"start them by gpreempt run: they yield to nobody, and have the driver's timeslice")
	}
}
