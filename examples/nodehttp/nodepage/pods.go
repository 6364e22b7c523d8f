package nodepage

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

type pod struct {
	ID, Name, Note string
	Volumes        []row
	History        history
}

type row struct {
	ID, Name, State, Class, Source, Plugin, Claim string
	Since                                         moment
	Text                                          string   // of the error
	Advice                                        string   // the error's further lines
	Notes                                         []string // what goes on, and what comes next
	Explained                                     bool     // by Text or Notes
	History                                       history  // of its claim and its PersistentVolume
}

// trouble is how much a volume needs a person's eye, the most first.
type trouble int

const (
	failing trouble = iota
	pending
	doubtful
	fine
)

func troubleOf(v volumemanager.VolumeStatus) trouble {
	switch {
	case v.State == volumemanager.StateFailed || v.State == volumemanager.StateDetached:
		return failing
	case v.State == volumemanager.StatePending:
		return pending
	case v.Err != nil || v.Attachment != nil || v.Condition != nil && v.Condition.Abnormal:
		return doubtful
	}
	return fine
}

// class is the class of style of a trouble.
func (t trouble) class() string { return [...]string{"bad", "wait", "doubt", "good"}[t] }

// pods groups rows that are in the order of pods.
func pods(rows []volumemanager.VolumeStatus, l *look) []pod {
	var found []pod
	told := make(map[string]bool) // what several pods use has its events once
	of := types.UID("")
	for i, r := range rows {
		if i == 0 || r.PodUID != of {
			of = r.PodUID
			p := pod{ID: "pod-" + string(of), Name: plain(r.Pod.String())}
			if r.Pod.Name == "" {
				p.Name = "Of no known pod"
			}
			if r.Kept {
				p.Note = "is kept, though no manifest that can be read has it"
			} else if !r.Wanted {
				p.Note = "is to go"
			}
			p.History = l.events.history(p.ID, l.taken, podKey(r))
			found = append(found, p)
		}
		p := &found[len(found)-1]
		shown := newRow(r, l.taken)
		if keys := storageKeys(r); len(keys) > 0 && !told[keys[0]] {
			told[keys[0]] = true
			shown.History = l.events.history(shown.ID, l.taken, keys...)
		}
		p.Volumes = append(p.Volumes, shown)
	}
	return found
}

func newRow(r volumemanager.VolumeStatus, now time.Time) row {
	out := row{ID: "volume-" + string(r.PodUID) + "/" + r.Volume, Name: plain(r.Volume), State: string(r.State), Class: troubleOf(r).class(), Source: plain(r.Source), Plugin: plain(strings.TrimPrefix(r.Plugin, "kubernetes.io/")), Since: newMoment(r.Since, now)}
	if r.State == volumemanager.StateUnused {
		out.Class = "none"
	}
	if r.Claim.Name != "" {
		out.Claim = plain(r.Claim.String())
	}
	if r.Err != nil {
		first, rest, _ := strings.Cut(r.Err.Error(), "\n")
		out.Text, out.Advice = plain(first), plain(rest)
		if e, ok := errors.AsType[interface {
			error
			Advice() string
		}](r.Err); ok && rest == "" {
			advice := e.Advice()
			if before, _, found := strings.Cut(first, "; "+advice); found && advice != "" {
				out.Text, out.Advice = plain(before), plain(advice)
			}
		}
	}
	out.Notes = notes(r, now)
	out.Explained = out.Text != "" || len(out.Notes) > 0
	return out
}

// notes say what a volume waits for, and when it is tried again.
func notes(r volumemanager.VolumeStatus, now time.Time) (found []string) {
	say := func(format string, args ...any) { found = append(found, plain(fmt.Sprintf(format, args...))) }
	if r.Operation != "" {
		text := fmt.Sprintf("%s under way for %s", r.Operation, span(now.Sub(r.Began)))
		if p := r.Progress; p != (volume.Progress{}) {
			text += fmt.Sprintf(": %s, %d", p.Doing, p.Done)
			if p.Total > 0 {
				text += fmt.Sprintf(" of %d", p.Total)
			}
		}
		say("%s", text)
	}
	if r.Attachment != nil && !sameText(r.Err, r.Attachment) {
		say("%v", r.Attachment)
	}
	if r.ServerTrouble() != "" && r.State != volumemanager.StateMounted {
		say("server %s has not answered since %s", r.Server.Source, newMoment(r.Server.Since, now).Clock)
	}
	if r.Condition != nil && r.Condition.Abnormal {
		say("its storage says: %s", r.Condition.Message)
	}
	if !r.NextRetry.IsZero() {
		say("next try at %s, after %s", newMoment(r.NextRetry, now).Clock, number(r.Failures, "failure"))
	}
	return found
}

func sameText(err error, attachment error) bool {
	return err != nil && strings.Contains(err.Error(), attachment.Error())
}
