package nodepage

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumesource"
)

type server struct {
	ID, Name, State, Class, Error string
	Address                       string
	Since                         moment
	Retry, Volumes                string
	Explained                     bool // by Error or Retry
}

type driver struct {
	Driver
	ID, Class string
	Since     moment
}

// servers are the servers of volumes, those without an answer first.
func servers(rows []volumemanager.VolumeStatus, now time.Time) []server {
	type known struct {
		health           volumesource.Health
		volumes, waiting int
	}
	found := make(map[string]*known)
	for _, r := range rows {
		h := r.Server
		if h.Source == "" {
			continue
		}
		s := found[h.Source]
		if s == nil {
			s = &known{health: h}
			found[h.Source] = s
		}
		s.volumes++
		if t := troubleOf(r); t == failing || t == pending {
			s.waiting++
		}
	}
	var all []server
	for name, known := range found {
		health := known.health
		s := server{ID: "server-" + name, Name: plain(name), State: "answers", Class: "good", Volumes: number(known.volumes, "volume"),
			Address: address(name, "", 1), Since: newMoment(health.Since, now)}
		if known.waiting > 0 {
			s.Volumes += fmt.Sprintf(", %d not mounted", known.waiting)
		}
		if !health.Answers {
			s.State, s.Class = "silent", "bad"
			s.Retry = newMoment(health.RetryAt, now).Clock
		}
		if health.Err != nil {
			s.Error = plain(health.Err.Error())
		}
		s.Explained = s.Error != "" || s.Retry != ""
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b server) int {
		return cmp.Or(strings.Compare(a.Class, b.Class), strings.Compare(a.Name, b.Name))
	})
	return all
}
