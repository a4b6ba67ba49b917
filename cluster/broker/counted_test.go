package broker

import (
	"maps"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
)

// The broker counts joins, leaves and refusals, and tells anybody who asks.
func TestWhatABrokerCounts(t *testing.T) {
	before := uint64(time.Now().UnixNano())
	b := start(t, refusing+"[quota]\nmembers_per_uid = 2\n")
	socket := join.SocketIn(b.directory, 7)
	b.uid.Store(5)
	one, _ := b.join(1, 7), b.join(2, 7)
	for wanted, reason := range map[int]wire.Reason{3: wire.RefusedOff, 4: wire.RefusedPolicy} {
		if _, err := b.try(options(1, wanted), 0); !refused(err, reason) {
			t.Error(err)
		}
	}
	b.join(1, 7)
	if _, err := b.try(options(1, 7), 0); !refused(err, wire.RefusedQuota) {
		t.Error(err)
	}
	one.Leave()
	fd, err := join.Dial(socket, soon)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendto(fd, []byte("nonsense"), 0, nil); err != nil {
		t.Fatal(err)
	}
	if m, _, err := wire.Receive(fd, 0); err != nil || m.(*wire.Refused).Reason != wire.RefusedVersion {
		t.Error(m, err)
	}
	unix.Close(fd)
	b.server.PolicyWrong()
	var c *wire.Counted
	eventually(t, "one has left", func() bool {
		if c, err = join.Statistics(socket); err != nil {
			t.Fatal(err)
		}
		return c.Clients == 2
	})
	if c.StartedNs < before || c.StartedNs > uint64(time.Now().UnixNano()) || c.Members != 2 || c.GPUs != 2 || c.Connections < 3 || c.Joined != 3 || c.Returned != 0 || c.PolicyWrong != 1 {
		t.Errorf("%+v", c)
	}
	want := map[string]uint64{"version": 1, "full": 0, "quota": 1, "policy": 1, "rate": 0, "late": 0, "form": 0, "identity": 0, "pages": 0, "broken": 0, "off": 1}
	if got := c.RefusedBy(); !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
	got := c.ReceivedBy()
	if got["hello"] != 6 || got["mapped"] != 3 || got["bye"] != 1 || got["none"] != 1 || got["statistics"] == 0 || len(got) != 11 {
		t.Errorf("%v", got)
	}
	bytes := uint64(0)
	for _, m := range []wire.Message{&wire.Hello{}, &wire.Mapped{}, &wire.Bye{}, &wire.Statistics{}} {
		bytes += c.Received[m.Type()] * uint64(wire.Size(m))
	}
	if c.ReceivedBytes != bytes || c.Sent < 3*4+3 || c.SentBytes < c.Sent*8 {
		t.Errorf("%d bytes, want %d; %d bytes in %d messages", c.ReceivedBytes, bytes, c.SentBytes, c.Sent)
	}
	b.server.SetPolicy(policy.Default())
	if c, err = join.Statistics(socket); err != nil || c.PolicyWrong != 0 {
		t.Error(c, err)
	}
}
