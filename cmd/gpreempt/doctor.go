package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/cmd/internal/cli"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/kernels"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

type status string

const (
	ok     status = "ok"
	warned status = "warn" // it works, with less
	failed status = "fail" // it cannot work
)

type finding struct {
	Check  string `json:"check"`
	Status status `json:"status"`
	Reason string `json:"reason"`
	Advice string `json:"advice,omitempty"`
}

// doctor collects findings. What later checks need of earlier ones is in its fields.
type doctor struct {
	findings []finding
	config   configs.Config
	library  string
	devices  []device
}

func (d *doctor) say(check string, s status, reason, advice string) {
	d.findings = append(d.findings, finding{check, s, reason, advice})
}

func (d *doctor) failed() bool {
	return slices.ContainsFunc(d.findings, func(f finding) bool { return f.Status == failed })
}

func doctorCommand() *cobra.Command {
	var asJSON bool
	var config string
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check that the library can work on this machine, and what it would use",
		Long: "Checks the driver, the devices, the library and the configuration, and tries the library in two small\n" +
			"programs of its own. The exit status is 0, or 1 when something that is needed is missing.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			d := &doctor{}
			d.examine(config)
			if err := d.print(command.OutOrStdout(), asJSON); err != nil {
				return fmt.Errorf("print: %w", err)
			}
			if d.failed() {
				return cli.Exit{Status: 1}
			}
			return nil
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	command.Flags().StringVarP(&config, "config", "c", "", "configuration file; default as in default.toml")
	return command
}

func (d *doctor) examine(config string) {
	d.checkConfig(config)
	d.checkDirectory()
	d.checkLibrary()
	d.checkKernelDriver()
	d.checkDevices()
	d.checkControlFile()
	mps := d.checkMPS()
	if d.library != "" && len(d.devices) > 0 {
		d.tryLibrary(config, mps)
	}
}

func (d *doctor) print(out io.Writer, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(struct {
			OK       bool      `json:"ok"`
			Findings []finding `json:"findings"`
		}{!d.failed(), d.findings})
	}
	for _, f := range d.findings {
		line := fmt.Sprintf("%-4s  %-9s  %s", f.Status, f.Check, f.Reason)
		if f.Advice != "" {
			line += "; " + f.Advice
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}

func (d *doctor) checkConfig(file string) {
	config, path, passed, err := loadConfig(file)
	if err == nil {
		_, err = configs.ParsePriority(os.Getenv("GPREEMPT_PRIORITY"))
	}
	d.config = config
	if passed != nil {
		d.say("config", warned, passed.Error(), "give it to root alone, or name it by GPREEMPT_CONFIG")
	}
	switch {
	case err != nil:
		d.config = configs.Default()
		d.say("config", failed, err.Error(), "correct it: programs run without preemption meanwhile")
	case path == "":
		d.say("config", ok, "no gpreempt.toml: the defaults are in force", "")
	default:
		d.say("config", ok, path, "")
	}
}

func (d *doctor) checkDirectory() {
	dir := d.config.Segment.Directory
	const advice = "set segment.directory to a tmpfs that every program under the library can write to"
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		d.say("segment", failed, fmt.Sprintf("%s: %v", dir, err), advice)
		return
	}
	own, gid, err := segmentDirectory(d.config)
	if err == nil {
		err = segment.CheckDirectory(own, gid)
	}
	if err != nil { // says itself what to do
		d.say("segment", failed, err.Error(), "")
		return
	}
	if err := writable(own); err != nil {
		d.say("segment", failed, err.Error(), advice)
		return
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC {
		d.say("segment", warned, dir+" is not in memory", advice)
		return
	}
	d.say("segment", ok, dir+" is writable", "")
}

// segmentDirectory is where programs of this user meet, and the group whose members may: -1 for none.
func segmentDirectory(config configs.Config) (dir string, gid int, err error) {
	if config.Segment.Group == "" {
		return segment.Directory(config.Segment.Directory, os.Getuid()), -1, nil
	}
	gid, err = segment.GroupID(config.Segment.Group)
	return segment.GroupDirectory(config.Segment.Directory, gid), gid, err
}

// writable tries a file in dir, or above it where dir does not exist yet.
func writable(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		dir = filepath.Dir(dir)
	}
	file, err := os.CreateTemp(dir, ".gpreempt-doctor-")
	if err != nil {
		return err
	}
	file.Close()
	return os.Remove(file.Name())
}

func (d *doctor) checkLibrary() {
	path, err := cli.FindLibrary()
	if err == nil {
		err = cli.CheckLibrary(path)
	}
	if err != nil {
		d.say("library", failed, err.Error(), "")
		return
	}
	d.library = path
	d.say("library", ok, path+" preloads", "")
}

var kernelVersion = regexp.MustCompile(`NVRM version:.*?\s(\d+\.\d+(\.\d+)?)\s`)

func (d *doctor) checkKernelDriver() {
	text, err := os.ReadFile("/proc/driver/nvidia/version")
	if err != nil {
		return // the devices tell: a simulated driver has none
	}
	if match := kernelVersion.FindSubmatch(text); match != nil {
		d.say("kernel", ok, "NVIDIA driver "+string(match[1]), "")
	} else {
		d.say("kernel", warned, "NVIDIA driver of an unknown version: "+firstLine(string(text)), "")
	}
}

type device struct {
	uuid       string
	capability string
	name       string
}

func (d device) simulated() bool { return strings.HasPrefix(d.name, "Simulated") }

func (d *doctor) simulated() bool {
	return len(d.devices) > 0 && !slices.ContainsFunc(d.devices, func(v device) bool { return !v.simulated() })
}

const probeLimit = 60 * time.Second // a first cuInit on eight GPUs without persistence takes long

func (d *doctor) checkDevices() {
	p, err := startProbe(os.Environ())
	if err != nil {
		d.say("driver", failed, err.Error(), "")
		return
	}
	defer p.end()
	lines, err := p.report()
	for _, line := range lines {
		d.readProbe(line)
	}
	if err != nil {
		d.say("driver", failed, "the probe of libcuda.so.1 "+err.Error(), "see whether nvidia-smi works")
		return
	}
	if len(d.devices) == 0 && !d.failed() {
		d.say("device", failed, "no CUDA device", "see CUDA_VISIBLE_DEVICES and whether nvidia-smi -L lists one")
	}
}

// readProbe understands a line of probe.c.
func (d *doctor) readProbe(line string) {
	what, rest, _ := strings.Cut(line, " ")
	f := strings.SplitN(rest, " ", 4)
	switch {
	case what == "driver":
		d.say("driver", ok, "libcuda.so.1 for CUDA "+rest, "")
	case what == "device" && len(f) == 4:
		v := device{uuid: gpuUUID(f[0]), capability: f[1], name: f[3]}
		d.devices = append(d.devices, v)
		d.sayDevice(v, f[2])
	case what == "error":
		name, rest, _ := strings.Cut(rest, " ")
		code, text, _ := strings.Cut(rest, " ")
		if code != "0" {
			text = fmt.Sprintf("%s: %s (%s)", name, text, code)
		}
		d.say("driver", failed, text, "install the NVIDIA driver, or pass the GPU into this container")
	}
}

func gpuUUID(digits string) string {
	var uuid [16]byte
	if n, err := hex.Decode(uuid[:], []byte(digits)); err != nil || n != len(uuid) {
		return digits
	}
	return segment.UUID(uuid)
}

func (d *doctor) sayDevice(v device, computeMode string) {
	about := fmt.Sprintf("%s, compute capability %s, %s", v.name, v.capability, v.uuid)
	sm, _ := strconv.Atoi(strings.ReplaceAll(v.capability, ".", ""))
	known := kernels.Architectures()
	row := slices.IndexFunc(known, func(a kernels.Architecture) bool { return a.SM == sm })
	switch { // CUcomputemode, cuda.h
	case computeMode == "2":
		d.say("device", warned, about+": compute mode is prohibited", "nvidia-smi --compute-mode=DEFAULT")
	case computeMode == "3":
		d.say("device", warned, about+": compute mode is exclusive, one process at a time", "nvidia-smi --compute-mode=DEFAULT")
	case sm < known[0].SM:
		d.say("device", warned, about+": older than Ampere, never tried", "")
	case row < 0:
		d.say("device", warned, fmt.Sprintf("%s: never tried, and kernels made for sm_%d itself are not rewritten", about, sm), "")
	case !known[row].Measured:
		d.say("device", ok, about+": expected to work, never measured", "")
	default:
		d.say("device", ok, about, "")
	}
}

func (d *doctor) checkControlFile() {
	const path = "/dev/nvidiactl"
	if d.simulated() {
		d.say("control", ok, path+" is not needed: the driver is simulated", "")
		return
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		d.say("control", failed, fmt.Sprintf("open %s: %v", path, err), "load the NVIDIA kernel module, or pass the device into this container")
		return
	}
	unix.Close(fd)
	d.say("control", ok, path+" opens", "")
}

// checkMPS says whether programs started from here would go through an MPS server.
func (d *doctor) checkMPS() (mps bool) {
	dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if dir == "" {
		dir = "/tmp/nvidia-mps"
	}
	if _, err := os.Stat(filepath.Join(dir, "control")); err != nil {
		d.say("mps", ok, "no MPS control daemon at "+dir, "")
		return false
	}
	text, err := os.ReadFile(filepath.Join(dir, "nvidia-cuda-mps-control.pid"))
	if pid, bad := strconv.Atoi(string(bytes.TrimSpace(text))); err == nil && bad == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		d.say("mps", ok, "the MPS control daemon of "+dir+" is gone", "")
		return false
	}
	reason := "an MPS control daemon is at " + dir + ": its clients share one TSG, which has one timeslice"
	if m := d.config.Mechanisms; m.Auto || m.BLP && m.MPS {
		d.say("mps", ok, reason+"; blp and mps take the place of timeslices", "")
		return true
	}
	d.say("mps", warned, reason+", and mechanisms has not both blp and mps",
		"add them, or stop it (echo quit | nvidia-cuda-mps-control), or set CUDA_MPS_PIPE_DIRECTORY to an empty directory for programs under the library")
	return true
}

// tryLibrary runs a best-effort and a latency-critical probe together under the library, and reads from
// the segments what is in force.
func (d *doctor) tryLibrary(config string, mps bool) {
	var probes []*probe
	for _, role := range []string{"be", "lc"} {
		p, err := d.tryRole(config, role)
		if err != nil {
			d.say("preload", failed, role+": "+err.Error(), "run a program with GPREEMPT_LOG=debug to see more")
			return
		}
		defer p.end()
		probes = append(probes, p)
	}
	be, lc := d.await(probes[0].pid(), probes[1].pid())
	for _, role := range []struct {
		name  string
		peers []segment.Peer
		probe *probe
	}{{"be", be, probes[0]}, {"lc", lc, probes[1]}} {
		if len(role.peers) < len(d.devices) {
			reason := fmt.Sprintf("%s: registered on %d of %d devices", role.name, len(role.peers), len(d.devices))
			role.probe.end() // and with it what writes to stderr
			if said := role.probe.stderr.String(); said != "" {
				reason += ": " + firstLine(said)
			}
			d.say("preload", failed, reason, "run a program with GPREEMPT_LOG=debug to see more")
		}
		for _, p := range role.peers {
			d.sayPeer(p, mps)
		}
	}
	d.sayBLP(be)
	d.sayPick(append(be, lc...))
}

// sayBLP says whether kernels of best-effort programs are rewritten, and why.
func (d *doctor) sayBLP(be []segment.Peer) {
	m := d.config.Mechanisms
	mps := slices.ContainsFunc(be, func(p segment.Peer) bool { return slices.Contains(p.Fallbacks, "mps") })
	why := ""
	switch {
	case m.BLP:
		why = "mechanisms names blp"
	case m.Auto && mps:
		why = "under MPS nothing else stops what runs"
	}
	in := slices.ContainsFunc(be, func(p segment.Peer) bool { return slices.Contains(p.Mechanisms, "blp") })
	switch {
	case why == "" && m.Auto:
		d.say("blp", ok, "kernels are left as they are: processes with a context each are separated by timeslices", "")
	case why == "":
		d.say("blp", ok, "kernels are left as they are: mechanisms does not name blp", "")
	case in:
		d.say("blp", ok, "kernels of best-effort programs are rewritten so that they stop between blocks: "+why, "")
	default:
		d.say("blp", warned, "kernels of best-effort programs are not rewritten, although "+why, "run a program with GPREEMPT_LOG=debug to see more")
	}
}

func (d *doctor) tryRole(config, role string) (*probe, error) {
	env := cli.SetEnv(os.Environ(), "LD_PRELOAD", preload(os.Getenv("LD_PRELOAD"), d.library))
	env = cli.SetEnv(env, "GPREEMPT_PRIORITY", role)
	env = cli.SetEnv(env, "GPREEMPT_LOG", "warn")
	if config != "" {
		env = cli.SetEnv(env, "GPREEMPT_CONFIG", config)
	}
	p, err := startProbe(env, "context")
	if err != nil {
		return nil, err
	}
	lines, err := p.report()
	for _, line := range lines {
		if text, isError := strings.CutPrefix(line, "error "); isError && err == nil {
			err = errors.New(text)
		}
	}
	if err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

// wantsTimeslice and wantsNothing say what the configuration lets the probes have.
func (d *doctor) wantsTimeslice() bool {
	return d.config.Mechanisms.Auto || d.config.Mechanisms.Timeslice
}

func (d *doctor) wantsNothing() bool { return d.config.Mechanisms == configs.Mechanisms{} }

// await reads the segments until both probes are on every device with what is wanted, or say why not.
func (d *doctor) await(bePid, lcPid int) (be, lc []segment.Peer) {
	settled := func(peers []segment.Peer) bool {
		for _, p := range peers {
			without := slices.ContainsFunc(p.Fallbacks, func(f string) bool { return f == "control_refused" || f == "mps" })
			if d.wantsTimeslice() && p.TimesliceUs == 0 && !without {
				return false
			}
			if m := d.config.Mechanisms; (m.Auto || m.MPS) && slices.Contains(p.Fallbacks, "mps") && !slices.Contains(p.Mechanisms, "mps") {
				return false
			}
			if !d.wantsNothing() && len(p.Mechanisms) == 0 && len(p.Fallbacks) == 0 {
				return false
			}
		}
		return len(peers) == len(d.devices)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		be, lc = d.peers(bePid), d.peers(lcPid)
		if settled(be) && settled(lc) && !slices.ContainsFunc(be, d.waitsForTimeslice) || time.Now().After(deadline) {
			return be, lc
		}
	}
}

// waitsForTimeslice: it heard of the latency-critical probe a moment ago.
func (d *doctor) waitsForTimeslice(be segment.Peer) bool {
	return be.TimesliceUs != 0 && uint64(be.TimesliceUs) != d.config.Timeslice.YieldingUs
}

func (d *doctor) peers(pid int) (found []segment.Peer) {
	snapshots, err := readSegments(d.config.Segment.Directory, d.config.Segment.Group)
	if err != nil {
		return nil
	}
	for _, s := range snapshots {
		for _, p := range s.Peers {
			if p.Alive && int(p.Pid) == pid {
				found = append(found, p)
			}
		}
	}
	return found
}

func (d *doctor) sayPeer(p segment.Peer, mps bool) {
	about := fmt.Sprintf("%s: in force: %s; timeslice %s", p.Role, strings.Join(p.Mechanisms, ", "), slice(p.TimesliceUs))
	if len(p.Mechanisms) == 0 {
		about = fmt.Sprintf("%s: nothing is in force", p.Role)
	}
	missing := slices.DeleteFunc(slices.Clone(p.Fallbacks), func(f string) bool { return f == "mps" && slices.Contains(p.Mechanisms, "mps") })
	switch refused := slices.Contains(missing, "control_refused"); {
	case refused && mps:
		d.say("preempt", warned, about+": the driver refused an RM control", "stop MPS")
	case refused:
		d.say("preempt", warned, about+": the driver refused an RM control", "this may be a sandbox; set mechanisms = [\"gate\", \"blp\"], which need none")
	case len(missing) > 0:
		d.say("preempt", warned, about+": not in force because of "+strings.Join(missing, ", "), "")
	case d.wantsTimeslice() && p.TimesliceUs == 0 && len(p.Fallbacks) == 0:
		d.say("preempt", warned, about+": no timeslice was set", "run a program with GPREEMPT_LOG=debug to see more")
	default:
		d.say("preempt", ok, about, "")
	}
}

// sayPick sums up what programs get, and why.
func (d *doctor) sayPick(peers []segment.Peer) {
	if d.wantsNothing() {
		d.say("picked", warned, "nothing is configured: mechanisms = []", "no program yields the GPU or gets it")
		return
	}
	var picked, missing []string
	for _, p := range peers {
		picked = union(picked, p.Mechanisms)
		missing = union(missing, p.Fallbacks)
	}
	from := "configured"
	if d.config.Mechanisms.Auto {
		from = `"auto" picks`
	}
	reason := "every probe succeeded"
	switch {
	case len(missing) > 0:
		reason = "because of " + strings.Join(missing, ", ")
	case len(peers) == 0:
		reason = "no probe registered"
	case len(picked) == 0:
		reason = "no probe said what it has, or why it has nothing"
	}
	if len(picked) == 0 {
		d.say("picked", failed, from+" nothing: "+reason, "see above")
		return
	}
	d.say("picked", ok, fmt.Sprintf("%s %s: %s", from, strings.Join(picked, ", "), reason), "")
}

func union(list, more []string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// probe is a process that runs probe.c.
type probe struct {
	command *exec.Cmd
	stdin   io.Closer
	lines   chan string
	stderr  bytes.Buffer
}

func startProbe(env []string, arguments ...string) (*probe, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own executable: %w", err)
	}
	p := &probe{command: exec.Command(executable, append([]string{"doctor-probe"}, arguments...)...), lines: make(chan string)}
	p.command.Env, p.command.Stderr = env, &p.stderr
	p.command.WaitDelay = time.Second
	stdin, err := p.command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start probe: %w", err)
	}
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start probe: %w", err)
	}
	p.stdin = stdin
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start probe: %w", err)
	}
	go func() {
		defer close(p.lines)
		for in := bufio.NewScanner(stdout); in.Scan(); {
			p.lines <- in.Text()
		}
	}()
	return p, nil
}

func (p *probe) pid() int { return p.command.Process.Pid }

// report returns the probe's lines, and an error unless the last one was "ready".
func (p *probe) report() (lines []string, err error) {
	limit := time.After(probeLimit)
	for {
		select {
		case line, more := <-p.lines:
			switch {
			case !more:
				return lines, fmt.Errorf("ended early (%v) %s", p.end(), firstLine(p.stderr.String()))
			case line == "ready":
				return lines, nil
			}
			lines = append(lines, line)
		case <-limit:
			return lines, fmt.Errorf("did not answer for %v", probeLimit)
		}
	}
}

// end lets the probe go, or kills it. It may be called again.
func (p *probe) end() error {
	if p.command.ProcessState != nil {
		return nil
	}
	p.stdin.Close()
	timer := time.AfterFunc(5*time.Second, func() { p.command.Process.Kill() })
	defer timer.Stop()
	for range p.lines { // until its standard output ends
	}
	return p.command.Wait()
}
