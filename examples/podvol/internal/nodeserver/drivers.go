package nodeserver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podvol/podvol/examples/nodehttp/nodepage"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/nodeagent"
	"github.com/podvol/podvol/volume/plugins/csi"
)

// Driver is a CSI driver as it is printed and served. Its keys are part of the command's
// contract.
type Driver struct {
	Driver  string `json:"driver"`
	Socket  string `json:"socket"`
	Version string `json:"version"`
	// State is one of the States.
	State        string   `json:"state"`
	Capabilities []string `json:"capabilities"` // of its Node service
	// Calls are under way, the oldest first.
	Calls []Call `json:"calls"`
	// Failures counts the calls without a certain answer since the last one with it, and
	// Error is of the last.
	Failures     int        `json:"failures"`
	FailingSince *time.Time `json:"failingSince,omitempty"`
	Error        string     `json:"error"`
	// KnownBy is the command that knows this.
	KnownBy string `json:"knownBy"`
}

// Call is one call under way. Volume is the driver's handle of it, or the new volume's name.
type Call struct {
	Method  string    `json:"method"`
	Volume  string    `json:"volume"`
	Since   time.Time `json:"since"`
	Seconds float64   `json:"seconds"`
}

// States of a driver.
const (
	// Answers: there is a connection, and the last call was answered.
	Answers = "answers"
	// Silent: the last call had no certain answer, or there is no connection.
	Silent = "silent"
	// Unused: no call was made yet.
	Unused = "unused"
)

// DriverOf is the row of a status that a command knows.
func DriverOf(s csi.DriverStatus, knownBy string) Driver {
	d := Driver{Driver: s.Name, Socket: s.Socket, Version: s.Version, State: Unused, KnownBy: knownBy, Failures: s.Failures,
		Capabilities: append([]string{}, s.Capabilities...), Calls: []Call{}}
	switch {
	case s.Failures > 0:
		d.State = Silent
	case s.Connected:
		d.State = Answers
	}
	if s.Err != nil {
		d.Error, d.FailingSince = s.Err.Error(), &s.FailingSince
	}
	for _, c := range s.Calls {
		d.Calls = append(d.Calls, Call{Method: c.Method, Volume: c.Volume, Since: c.Since, Seconds: time.Since(c.Since).Seconds()})
	}
	return d
}

// known are the drivers of an agent: one row for a driver of pods' volumes and of claims.
func known(config nodeagent.Config) []Driver {
	var all []csi.DriverStatus
	for _, p := range slices.Concat(config.Plugins, config.ClaimPlugins) {
		if p, ok := p.(interface {
			volume.VolumePlugin
			Drivers() []csi.DriverStatus
		}); ok {
			all = append(all, p.Drivers()...)
		}
	}
	slices.SortStableFunc(all, func(a, b csi.DriverStatus) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Socket, b.Socket))
	})
	rows := []Driver{}
	for i, s := range all {
		if i+1 < len(all) && all[i+1].Name == s.Name && all[i+1].Socket == s.Socket {
			all[i+1] = both(s, all[i+1])
			continue
		}
		rows = append(rows, DriverOf(s, "podvol run-node"))
	}
	return rows
}

// both is the status of a driver that two plugins know, each by connections of its own.
func both(a, b csi.DriverStatus) csi.DriverStatus {
	a.Connected = a.Connected || b.Connected
	a.Version = cmp.Or(a.Version, b.Version)
	if len(a.Capabilities) == 0 {
		a.Capabilities = b.Capabilities
	}
	a.Calls = slices.SortedFunc(slices.Values(slices.Concat(a.Calls, b.Calls)), func(a, b csi.CallStatus) int { return a.Since.Compare(b.Since) })
	if a.Err == nil || b.Err != nil && b.FailingSince.Before(a.FailingSince) {
		a.Err, a.FailingSince = b.Err, b.FailingSince
	}
	a.Failures += b.Failures
	return a
}

// shown are the drivers as the page for people shows them.
func shown(drivers []Driver) (rows []nodepage.Driver) {
	for _, d := range drivers {
		row := nodepage.Driver{Name: d.Driver, Version: d.Version, State: d.State, Trouble: d.State == Silent, Error: d.Error}
		if d.FailingSince != nil {
			row.Since = *d.FailingSince
		}
		for _, c := range d.Calls {
			row.Calls = append(row.Calls, fmt.Sprintf("%s of %s for %.0f s", c.Method, c.Volume, c.Seconds))
		}
		rows = append(rows, row)
	}
	return rows
}
