package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	peers "github.com/gpreempt/gpreempt/preempt/member" // member is another word for it here
	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// The users suite: processes of several users, which find each other by a broker of the suite's own.

const usersSuite = "users"

// Users of the suite; none of them needs a name on the machine. The policy lets services, and hostileService, be latency-critical.
const (
	service = 61001 + iota
	otherService
	tenant
	otherTenant
	hostileService
	hostileTenant
)

const hostileHold = 100 // ms: how long a window of hostileService keeps others away at most

const usersPolicy = `[default]
level = "be"
[[rule]]
name = "services"
when = "uid == %d || uid == %d"
level = "lc"
[[rule]]
name = "hostile"
when = "uid == %d"
level = "lc"
max_hold_ms = %d
`

// withBroker lets other users run the workers, and starts a broker.
func withBroker(ctx context.Context, s *session) (end func(), err error) {
	if os.Getuid() != 0 {
		return nil, errors.New("only root can run workers as other users")
	}
	if err := s.openToOthers(); err != nil {
		return nil, err
	}
	u := &users{directory: filepath.Join(s.folder, "broker"), policy: filepath.Join(s.folder, "policy.toml")}
	if u.program, err = beside("gpreemptd", s.options.Library); err != nil {
		return nil, err
	}
	text := fmt.Sprintf(usersPolicy, service, otherService, hostileService, hostileHold)
	if err := os.WriteFile(u.policy, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write the policy: %w", err)
	}
	for broker, path := range map[string]*string{u.directory: &u.byBroker, "": &u.byFile} {
		if *path, err = s.worldOf(broker); err != nil {
			return nil, err
		}
	}
	if err := u.serve(ctx); err != nil {
		return nil, err
	}
	s.users = u
	return func() { u.running.kill() }, nil
}

// openToOthers lets any user run the worker and the library, of which it makes copies, and make segments.
func (s *session) openToOthers() error {
	for _, path := range []*string{&s.executable, &s.library} {
		to := filepath.Join(s.files, filepath.Base(*path))
		if err := copyProgram(*path, to); err != nil {
			return err
		}
		*path = to
	}
	if err := errors.Join(os.Chmod(s.folder, 0o755), os.Chmod(s.files, 0o755), os.Chmod(s.segments, 0o777|os.ModeSticky)); err != nil {
		return fmt.Errorf("let other users read the temporary folders: %w", err)
	}
	return nil
}

// beside finds a program in the folder of this one, or else of the library.
func beside(name, library string) (path string, err error) {
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find own executable: %w", err)
	}
	for _, neighbour := range []string{own, library} {
		if path, err = filepath.Abs(filepath.Join(filepath.Dir(neighbour), name)); err == nil {
			if _, err = os.Stat(path); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s is neither beside %s nor beside %s", name, own, library)
}

// worldOf writes the caller's configuration with a broker's directory ("": none) and the session's segments.
func (s *session) worldOf(broker string) (path string, err error) {
	text := []byte{}
	if path := os.Getenv("GPREEMPT_CONFIG"); path != "" {
		if text, err = os.ReadFile(path); err != nil {
			return "", fmt.Errorf("read GPREEMPT_CONFIG: %w", err)
		}
	}
	text = append(text, fmt.Sprintf("\n%s\n[segment]\ndirectory = %q\nbroker = %q\n", noHints, s.segments, broker)...)
	if _, err := configs.Parse("GPREEMPT_CONFIG with the suite's segments", text); err != nil {
		return "", err
	}
	path = filepath.Join(s.files, "by-broker.toml")
	if broker == "" {
		path = filepath.Join(s.files, "by-file.toml")
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return "", fmt.Errorf("write a configuration: %w", err)
	}
	return path, nil
}

// as is a session whose workers are a user's, with a configuration.
func (s *session) as(uid uint32, config string) *session {
	one := *s
	one.credential, one.config = &syscall.Credential{Uid: uid, Gid: uid}, config
	return &one
}

// party is who runs together: the users of the LC processes and of the BE ones, one each.
type party struct {
	what       string
	lc, be     []uint32
	broker     bool // they find each other by the broker; else by a file, and are one user's
	namespaces namespaces
}

// gathered are workers of a party that are ready; those of BE are under way.
type gathered struct {
	*session
	lc, be []*worker
}

func (g *gathered) kill() {
	for _, w := range slices.Concat(g.lc, g.be) {
		w.kill()
	}
}

// gather starts a party's workers. Those by the broker are members then.
func (s *session) gather(ctx context.Context, p party, lcOptions, beOptions []string) (g *gathered, err error) {
	g = &gathered{session: s}
	defer func() {
		if err != nil {
			g.kill()
		}
	}()
	config := s.users.byFile
	if p.broker {
		config = s.users.byBroker
	}
	start := func(uid uint32, role string, options []string) (*worker, error) {
		one := s.as(uid, config)
		one.namespaces = p.namespaces
		return one.start(ctx, role, role, options...)
	}
	for _, uid := range p.be {
		w, err := start(uid, "be", beOptions)
		if err != nil {
			return g, err
		}
		g.be = append(g.be, w)
	}
	for _, w := range g.be {
		if err := w.begin(ctx); err != nil {
			return g, err
		}
	}
	for _, uid := range p.lc {
		w, err := start(uid, "lc", lcOptions)
		if err != nil {
			return g, err
		}
		g.lc = append(g.lc, w)
	}
	for _, w := range g.lc {
		if err := w.awaitReady(ctx, nil); err != nil {
			return g, err
		}
	}
	if p.broker {
		err = s.users.joined(ctx, g)
	}
	if err == nil {
		err = g.apart(p.namespaces)
	}
	return g, err
}

const joinedWithin = 30 * time.Second // also on a machine that is busy

// members are the broker's by the number of their process, and the GPU's UUID.
func (u *users) members() (all map[int]segment.Peer, gpu string, err error) {
	snapshots, err := peers.Snapshots(u.directory)
	if err != nil {
		return nil, "", fmt.Errorf("ask the broker: %w", err)
	}
	all = map[int]segment.Peer{}
	for _, snapshot := range snapshots {
		for _, p := range snapshot.Peers {
			all[int(p.Owner)], gpu = p, snapshot.GPU
		}
	}
	return all, gpu, nil
}

// look is members, of a broker that may be busy.
func (u *users) look(ctx context.Context) (all map[int]segment.Peer, gpu string, err error) {
	for deadline := time.Now().Add(joinedWithin); ; {
		if all, gpu, err = u.members(); err == nil || time.Now().After(deadline) {
			return all, gpu, err
		}
		if err := pause(ctx, pollInterval); err != nil {
			return nil, "", err
		}
	}
}

// joined waits until workers are members, at the levels that the policy gives them.
func (u *users) joined(ctx context.Context, g *gathered) error {
	for deadline := time.Now().Add(joinedWithin); ; {
		all, _, err := u.members()
		missing := func(workers []*worker, role string) *worker {
			for _, w := range workers {
				if p, is := all[w.pid()]; !is || p.Role != role {
					return w
				}
			}
			return nil
		}
		w := cmp.Or(missing(g.lc, "lc"), missing(g.be, "be"))
		if err == nil && w == nil {
			return nil
		}
		if time.Now().After(deadline) {
			if err == nil {
				err = fmt.Errorf("%s did not join the broker with its level: %s", w.name, w.stderr.lastLine())
			}
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// shared is what a party reached.
type shared struct {
	latency *result.Latency
	be      float64 // kernels a second, of all
	left    float64 // part of the time that LC leaves
}

// partyTogether runs a party, beside what begins when it is ready: beside may be nil.
func (s *session) partyTogether(ctx context.Context, l load, p party, beside func() (end func(), err error)) (r shared, err error) {
	lcOptions, err := s.lcOptions(ctx, l)
	if err != nil {
		return r, err
	}
	beOptions, err := s.workOptions(ctx, bestEffort)
	if err != nil {
		return r, err
	}
	g, err := s.gather(ctx, p, lcOptions, append(beOptions, "--seconds", "50"))
	if err != nil {
		return r, fmt.Errorf("%s: %w", p.what, err)
	}
	defer g.kill()
	if beside != nil {
		end, err := beside()
		if err != nil {
			return r, err
		}
		defer end()
	}
	for _, w := range g.lc {
		if err := w.send("run"); err != nil {
			return r, err
		}
	}
	lc := make([]lcResult, len(g.lc))
	for i, w := range g.lc {
		if err := w.answer(ctx, workerLimit, &lc[i]); err != nil {
			return r, fmt.Errorf("%s: %w", p.what, err)
		}
	}
	// Samples lie a kernel apart: let the BE processes pass the end of the interval.
	if err := pause(ctx, 100*time.Millisecond); err != nil {
		return r, err
	}
	be, err := g.end(ctx)
	if err != nil {
		return r, fmt.Errorf("%s: %w", p.what, err)
	}
	return sumUp(lc, &s.users.lc, be)
}

// end stops BE, and ends all.
func (g *gathered) end(ctx context.Context) (be []beResult, err error) {
	be = make([]beResult, len(g.be))
	for i, w := range g.be {
		if err := w.ask(ctx, answerLimit, &be[i], "stop"); err != nil {
			return nil, err
		}
	}
	for _, w := range slices.Concat(g.lc, g.be) {
		g.finish(w)
	}
	return be, nil
}

// sumUp sums up what LC and BE processes reached while all of LC was measured. LC leaves to BE the time that its requests do not take. Of
// several LC processes a request counts as long as it takes alone, since here they wait for each other.
func sumUp(lc []lcResult, alone *lcResult, be []beResult) (r shared, err error) {
	start, end := uint64(0), ^uint64(0)
	var all []uint64
	taken := 0.0
	for i := range lc {
		one := &lc[i]
		if len(one.LatenciesNs) == 0 {
			return r, errors.New("an LC process finished no request in time")
		}
		start, end = max(start, one.StartNs), min(end, one.EndNs)
		all = append(all, one.LatenciesNs...)
		mean := one.mean()
		if len(lc) > 1 {
			mean = alone.mean()
		}
		taken += mean * float64(len(one.LatenciesNs)) / float64(one.EndNs-one.StartNs)
	}
	if start >= end {
		return r, errors.New("the LC processes were not measured at the same time")
	}
	r.latency, r.left = result.LatencyOf(all), 1-taken
	for i := range be {
		r.be += be[i].rate(start, end)
	}
	return r, nil
}

// loadOfUsers is what each LC process does: 4 s of requests.
func loadOfUsers() load {
	l := synced(10, 0)
	l.requests = 1000
	return l
}

// eachOfUsersAlone measures LC, and BE, alone, once in the session.
func (s *session) eachOfUsersAlone(ctx context.Context, l load) error {
	if s.users.latency != nil {
		return nil
	}
	options, err := s.lcOptions(ctx, l)
	if err != nil {
		return err
	}
	var lc lcResult
	if err := s.run(ctx, &lc, "", "lc", options...); err != nil {
		return fmt.Errorf("LC alone: %w", err)
	}
	latency := result.LatencyOf(lc.LatenciesNs)
	if latency == nil {
		return errors.New("the LC process finished no request in time")
	}
	be, err := s.beRate(ctx, bestEffort, "")
	if err != nil {
		return fmt.Errorf("BE alone: %w", err)
	}
	s.users.lc, s.users.latency, s.users.be = lc, latency, be
	return nil
}

// ofParty is the row of what a party reached.
func (u *users) ofParty(name, system string, r shared) result.Row {
	be := rateOf(r.be, u.be, kernelsPerSecond)
	be.Share = 0
	if r.left > 0 {
		be.Share = result.Round(r.be/u.be/r.left, 3)
	}
	return result.Row{Case: name, System: system, LC: r.latency, LCAlone: u.latency, Ratio: result.RatioOf(r.latency, u.latency), BE: be}
}

// bound is what a party has to reach beside another one, measured in turns with it.
type bound struct {
	p99   float64 // times the other's, at most
	be    float64 // times the other's, at least; 0: no bound
	share float64 // of what LC leaves, at least; 0: no bound
}

func (b bound) text(other string) string {
	text := fmt.Sprintf("lc p99 <= %g x %s", b.p99, other)
	if b.be > 0 {
		text += fmt.Sprintf(", BE >= %g x", b.be)
	}
	if b.share > 0 {
		text += fmt.Sprintf(", BE >= %g of what LC leaves", b.share)
	}
	return text
}

func (b bound) met(now, other result.Row) bool {
	return now.LC.P99Us <= b.p99*other.LC.P99Us && now.BE.Now >= b.be*other.BE.Now && now.BE.Share >= b.share
}

// partyRounds is how many rounds each of two parties has. Of one round of 1000 requests the p99 alone was seen to vary by 15 % (H200).
const partyRounds = 3

// measureParties measures one party, and another in place of it, or the same beside what begins when it is ready, in turns.
func (s *session) measureParties(ctx context.Context, name string, first, second party, beside func() (func(), error), b bound) error {
	l := loadOfUsers()
	if err := s.eachOfUsersAlone(ctx, l); err != nil {
		return err
	}
	var before, now []result.Row
	for range cmp.Or(s.options.Repeats, partyRounds) {
		without, err := s.partyTogether(ctx, l, first, nil)
		if err != nil {
			return err
		}
		with, err := s.partyTogether(ctx, l, second, beside)
		if err != nil {
			return err
		}
		before = append(before, s.users.ofParty(name+"-before", "gpreempt", without))
		now = append(now, s.users.ofParty(name, "gpreempt", with))
	}
	rows := []result.Row{result.OfRounds(before, s.users.latency), result.OfRounds(now, s.users.latency)}
	rows[0].Note = fmt.Sprintf("%s; medians of %d rounds, p99 %s us", first.what, len(before), p99s(before))
	rows[1].Note = fmt.Sprintf("%s; medians of %d rounds, p99 %s us; beside %s: lc p50 %.3f x, p99 %.3f x, BE %.3f x", second.what, len(now), p99s(now), first.what,
		rows[1].LC.P50Us/rows[0].LC.P50Us, rows[1].LC.P99Us/rows[0].LC.P99Us, rows[1].BE.Now/rows[0].BE.Now)
	rows[1] = rows[1].Judged(b.text(first.what), b.met(rows[1], rows[0]))
	s.report.Cases = append(s.report.Cases, rows...)
	return nil
}

// p99s are those of rounds, in their order.
func p99s(rounds []result.Row) string {
	var words []string
	for _, r := range rounds {
		words = append(words, fmt.Sprintf("%.0f", r.LC.P99Us))
	}
	return strings.Join(words, ", ")
}

var (
	oneUser    = party{what: "one user, by a file", lc: []uint32{service}, be: []uint32{service, service}}
	threeUsers = party{what: "three users, by the broker", lc: []uint32{service}, be: []uint32{tenant, otherTenant}, broker: true}
	fourOfOne  = party{what: "two LC of one user, by a file", lc: []uint32{service, service}, be: []uint32{service, service}}
	fourUsers  = party{what: "four users, by the broker", lc: []uint32{service, otherService}, be: []uint32{tenant, otherTenant}, broker: true}
)

// What several users have to reach, beside the same processes of one user. How much of the time several LC processes leave is not known well
// enough for a share of it: their requests overlap.
var (
	likeOneUser  = bound{p99: 1.05, be: .95, share: .9}
	likeFourOfIt = bound{p99: 1.05, be: .95}
)

// hostileCases are attacks, and what they may cost BE by the policy. Who says that it has work gets a turn: one of three.
var hostileCases = []struct {
	attack, about string
	uid           uint32
	be            float64
}{
	{"page", "a BE client that changes its pages at random", hostileTenant, .63},
	{"flood", "a BE client that connects and sends without end", hostileTenant, .95},
	{"open", "an LC client with a window that is open for ever", hostileService, .95},
	{"stop", "an LC client that is stopped in a window", hostileService, .95},
}

func usersCases() []Case {
	of := []string{usersSuite}
	cases := []Case{
		{"users-one", p99Times(1.3).text + ", " + shareAtLeast(.9).text, of, 18, measureOneUser},
		{"users-two", likeOneUser.text(oneUser.what), of, 36, func(ctx context.Context, s *session, name string) error {
			return s.measureParties(ctx, name, oneUser, threeUsers, nil, likeOneUser)
		}},
		{"users-namespaces", likeFourOfIt.text(fourOfOne.what), of, 38, measureNamespaces},
	}
	for _, h := range hostileCases {
		b := bound{p99: 1.05, be: h.be}
		cases = append(cases, Case{"users-hostile-" + h.attack, b.text("without it"), of, 40, func(ctx context.Context, s *session, name string) error {
			with, without := threeUsers, threeUsers
			with.what, without.what = h.about, "without it"
			return s.measureParties(ctx, name, without, with, func() (func(), error) { return s.attack(ctx, h.attack, h.uid) }, b)
		}})
	}
	return append(cases,
		Case{"users-killed", killedTarget, of, 25, measureKilled},
		Case{"users-broker", brokerTargets, of, 25, measureBroker})
}

func measureOneUser(ctx context.Context, s *session, name string) error {
	l := loadOfUsers()
	if err := s.eachOfUsersAlone(ctx, l); err != nil {
		return err
	}
	r, err := s.partyTogether(ctx, l, oneUser, nil)
	if err != nil {
		return err
	}
	target := both(p99Times(1.3), shareAtLeast(.9))
	row := s.users.ofParty(name, "gpreempt", r)
	row.Note = oneUser.what
	s.report.Cases = append(s.report.Cases,
		result.Row{Case: name, System: "alone", LC: s.users.latency, BE: rateOf(s.users.be, s.users.be, kernelsPerSecond)},
		row.Judged(target.text, target.met(row)))
	return nil
}

// attack starts a hostile client, and returns when its attack is under way.
func (s *session) attack(ctx context.Context, kind string, uid uint32) (end func(), err error) {
	if kind == "stop" {
		return s.stopInWindow(ctx, uid)
	}
	_, gpu, err := s.users.look(ctx)
	if err != nil {
		return nil, err
	}
	p := program{name: "hostile client (" + kind + ")", arguments: []string{s.executable, hostileCommand, kind, s.users.directory, gpu},
		environment: s.environment(""), credential: &syscall.Credential{Uid: uid, Gid: uid}}
	w, err := s.launch(ctx, p, "")
	if err != nil {
		return nil, err
	}
	err = w.awaitReady(ctx, nil)
	if err == nil && kind != "flood" { // which is a member now and then
		err = s.users.fallsFor(ctx, w, kind)
	}
	if err != nil {
		w.kill()
		return nil, err
	}
	return w.kill, nil
}

// fallsFor sees that a hostile client is a member, and that one that says so has an open window at the highest level.
func (u *users) fallsFor(ctx context.Context, w *worker, kind string) error {
	all, _, err := u.look(ctx)
	if err != nil {
		return err
	}
	p, is := all[w.pid()]
	if !is || kind == "open" && (p.WindowOpenedNs == 0 || p.Role != "lc") {
		return fmt.Errorf("%s is not what it should be: member: %v, %s, window since %d", w.name, is, p.Role, p.WindowOpenedNs)
	}
	return nil
}

// stopInWindow stops an LC process of a user by SIGSTOP while its window is open.
func (s *session) stopInWindow(ctx context.Context, uid uint32) (end func(), err error) {
	options, err := s.lcOptions(ctx, loadOfUsers())
	if err != nil {
		return nil, err
	}
	w, err := s.as(uid, s.users.byBroker).start(ctx, "lc", "lc", append(options, "--requests", "100000", "--seconds", "50")...)
	if err != nil {
		return nil, err
	}
	if err = w.begin(ctx); err != nil {
		w.kill()
		return nil, err
	}
	for deadline := time.Now().Add(joinedWithin); ; {
		_ = syscall.Kill(w.pid(), syscall.SIGSTOP) // one that has ended is not a member
		all, _, err := s.users.look(ctx)
		if err == nil && all[w.pid()].WindowOpen {
			return w.kill, nil
		}
		_ = syscall.Kill(w.pid(), syscall.SIGCONT)
		if err == nil && time.Now().After(deadline) {
			err = fmt.Errorf("%s: no window was open in %s", w.name, joinedWithin)
		}
		if err == nil {
			err = pause(ctx, pollInterval)
		}
		if err != nil {
			w.kill()
			return nil, err
		}
	}
}

const (
	killsOfBroker = 20
	killEvery     = time.Second
	againWithin   = time.Second      // the target
	againAtMost   = 30 * time.Second // waited for
	killedTarget  = "no program fails, windows work again <= 1 s after each start"
)

// measureKilled kills the broker and starts another one, again and again, while programs of three users run.
func measureKilled(ctx context.Context, s *session, name string) error {
	l := loadOfUsers()
	if err := s.eachOfUsersAlone(ctx, l); err != nil {
		return err
	}
	lcOptions, err := s.lcOptions(ctx, l)
	if err != nil {
		return err
	}
	beOptions, err := s.workOptions(ctx, bestEffort)
	if err != nil {
		return err
	}
	g, err := s.gather(ctx, threeUsers, append(lcOptions, "--requests", "100000", "--seconds", "55"), append(beOptions, "--seconds", "55"))
	if err != nil {
		return err
	}
	defer g.kill()
	for _, w := range g.lc {
		if err := w.begin(ctx); err != nil {
			return err
		}
	}
	var took []time.Duration
	for range cmp.Or(s.options.Repeats, killsOfBroker) {
		next := time.Now().Add(killEvery)
		again, err := s.users.replace(ctx, g)
		if err != nil {
			return err
		}
		took = append(took, again)
		if err := pause(ctx, max(time.Until(next), time.Millisecond)); err != nil {
			return err
		}
	}
	lc := make([]lcResult, len(g.lc))
	for i, w := range g.lc {
		if err := w.ask(ctx, answerLimit, &lc[i], "stop"); err != nil {
			return err
		}
	}
	be, err := g.end(ctx)
	if err != nil {
		return err
	}
	r, err := sumUp(lc, &s.users.lc, be)
	if err != nil {
		return err
	}
	slices.Sort(took)
	longest := took[len(took)-1]
	row := s.users.ofParty(name, "gpreempt", r)
	seconds := result.Round(longest.Seconds(), 3)
	row.Value, row.Unit = &seconds, "s"
	row.Note = fmt.Sprintf("%d kills; windows again after %.3f s (median), %.3f s (longest)", len(took), took[len(took)/2].Seconds(), longest.Seconds())
	s.report.Cases = append(s.report.Cases, row.Judged(killedTarget, longest <= againWithin))
	return nil
}

// replace kills the broker, starts another one, and says how long after that all are its members and LC has opened windows while others had
// work.
func (u *users) replace(ctx context.Context, g *gathered) (took time.Duration, err error) {
	before, _, err := u.look(ctx)
	if err != nil {
		return 0, err
	}
	u.running.kill()
	if err := u.serve(ctx); err != nil {
		return 0, err
	}
	for began := time.Now(); ; {
		all, _, err := u.members()
		if err == nil && windowsWork(g, before, all) {
			return time.Since(began), nil
		}
		for _, w := range slices.Concat(g.lc, g.be) {
			if w.hasEnded() {
				return 0, fmt.Errorf("%s: %w: %s", w.name, errEnded, w.stderr.lastLine())
			}
		}
		if time.Since(began) > againAtMost {
			return 0, errors.Join(fmt.Errorf("windows do not work %s after the start of a broker", againAtMost), err)
		}
		if err := pause(ctx, pollInterval); err != nil {
			return 0, err
		}
	}
}

// windowsWork says whether all are members, and LC has counted windows and switches since before.
func windowsWork(g *gathered, before, now map[int]segment.Peer) bool {
	for _, w := range g.be {
		if _, is := now[w.pid()]; !is {
			return false
		}
	}
	for _, w := range g.lc {
		was, is := before[w.pid()].Counters, now[w.pid()].Counters
		if is.Windows <= was.Windows || is.Switches <= was.Switches {
			return false
		}
	}
	return true
}

const (
	joins         = 500
	joinEvery     = 20 * time.Millisecond // a user may join 64 times a second
	idleSeconds   = 10
	joinP99Ms     = 2.0
	brokerMB      = 20.0
	brokerPercent = .1
	brokerTargets = "join p99 <= 2 ms, broker <= 20 MB, idle CPU <= 0.1 %"
)

// measureBroker looks at the broker beside three clients that have nothing to do: what it takes, and how long others take to join.
func measureBroker(ctx context.Context, s *session, name string) error {
	var idle []*worker
	defer func() {
		for _, w := range idle {
			w.kill()
		}
	}()
	g := &gathered{session: s}
	for _, uid := range []uint32{service, tenant, otherTenant} {
		role, list := "be", &g.be
		if uid == service {
			role, list = "lc", &g.lc
		}
		w, err := s.as(uid, s.users.byBroker).start(ctx, role, "idle")
		if err != nil {
			return err
		}
		idle, *list = append(idle, w), append(*list, w)
	}
	for _, w := range idle {
		if err := w.awaitReady(ctx, nil); err != nil {
			return err
		}
	}
	if err := s.users.joined(ctx, g); err != nil {
		return err
	}
	_, uuid, err := s.users.look(ctx)
	if err != nil {
		return err
	}
	gpu, err := segment.ParseGPU(uuid)
	if err != nil {
		return err
	}
	var took []uint64
	for range cmp.Or(s.options.Requests, joins) {
		ns, err := timeJoin(s.users.directory, gpu)
		if err != nil {
			return err
		}
		took = append(took, ns)
		if err := pause(ctx, joinEvery); err != nil {
			return err
		}
	}
	length := time.Duration(cmp.Or(s.options.Seconds, idleSeconds) * float64(time.Second))
	percent, megabytes, err := s.users.running.idle(ctx, length)
	if err != nil {
		return err
	}
	latency := result.LatencyOf(took)
	p99 := result.Round(latency.P99Us/1000, 3)
	s.report.Cases = append(s.report.Cases,
		valueRow(name+"-join", "gpreempt", p99, "ms p99", fmt.Sprintf("<= %g ms", joinP99Ms), p99 <= joinP99Ms,
			fmt.Sprintf("%d joins beside 3 clients, until all pages are mapped; p50 %.3f ms, longest %.3f ms", latency.N, latency.P50Us/1000, latency.MaxUs/1000)),
		valueRow(name+"-memory", "gpreempt", megabytes, "MB RSS", fmt.Sprintf("<= %g MB", brokerMB), megabytes <= brokerMB, "after the joins"),
		valueRow(name+"-cpu", "gpreempt", percent, "% of a core", fmt.Sprintf("<= %g %% of a core", brokerPercent), percent <= brokerPercent,
			fmt.Sprintf("of %s, 3 clients with nothing to do", length)))
	return nil
}

// idle is how much of a processor the broker takes, and its memory in MB.
func (b *brokerProcess) idle(ctx context.Context, length time.Duration) (percent, megabytes float64, err error) {
	before, err := b.ran()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := pause(ctx, length); err != nil {
		return 0, 0, err
	}
	after, err := b.ran()
	if err != nil {
		return 0, 0, err
	}
	percent = result.Round(100*(after-before).Seconds()/time.Since(began).Seconds(), 3)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.cmd.Process.Pid))
	if err != nil {
		return 0, 0, fmt.Errorf("the broker's memory: %w", err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	words := strings.Fields(rest)
	if len(words) == 0 {
		return 0, 0, errors.New("the broker's memory: the kernel does not say")
	}
	kb, err := strconv.ParseFloat(words[0], 64)
	if err != nil {
		return 0, 0, fmt.Errorf("the broker's memory: %w", err)
	}
	return percent, result.Round(kb*1024/1e6, 1), nil
}
