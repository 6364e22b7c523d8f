// Package csiregistration has the messages of the kubelet's plugin registration service
// (pluginregistration.Registration, version 1), which a driver's registrar serves on a
// socket of its own. There are four of them, with six fields in all, so they need no
// generated code: they travel as messages whose fields are unknown to protobuf.
package csiregistration

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// The service and its calls.
const (
	Service                  = "pluginregistration.Registration"
	GetInfo                  = "/" + Service + "/GetInfo"
	NotifyRegistrationStatus = "/" + Service + "/NotifyRegistrationStatus"
	// CSIPlugin is the type of plugin that is a CSI driver.
	CSIPlugin = "CSIPlugin"
)

// Info is the answer to GetInfo.
type Info struct {
	// Type is [CSIPlugin] for drivers. Name is the driver's.
	Type, Name string
	// Endpoint is the driver's socket; empty: the registrar's own.
	Endpoint string
	Versions []string
}

// Status is the request of NotifyRegistrationStatus.
type Status struct {
	Registered bool
	Error      string
}

// Message returns the message that carries the info.
func (i Info) Message() *emptypb.Empty {
	var b []byte
	for n, text := range []string{i.Type, i.Name, i.Endpoint} {
		b = appendString(b, protowire.Number(n+1), text)
	}
	for _, version := range i.Versions {
		b = appendString(b, 4, version)
	}
	return carry(b)
}

// ParseInfo returns the info that a message carries.
func ParseInfo(m *emptypb.Empty) (i Info, err error) {
	err = fields(m, func(n protowire.Number, text string, _ uint64) {
		switch n {
		case 1:
			i.Type = text
		case 2:
			i.Name = text
		case 3:
			i.Endpoint = text
		case 4:
			i.Versions = append(i.Versions, text)
		}
	})
	return i, err
}

// Message returns the message that carries the status.
func (s Status) Message() *emptypb.Empty {
	var b []byte
	if s.Registered {
		b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), 1)
	}
	return carry(appendString(b, 2, s.Error))
}

// ParseStatus returns the status that a message carries.
func ParseStatus(m *emptypb.Empty) (s Status, err error) {
	err = fields(m, func(n protowire.Number, text string, number uint64) {
		switch n {
		case 1:
			s.Registered = number != 0
		case 2:
			s.Error = text
		}
	})
	return s, err
}

func appendString(b []byte, n protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), text)
}

func carry(b []byte) *emptypb.Empty {
	m := new(emptypb.Empty)
	m.ProtoReflect().SetUnknown(b)
	return m
}

var errMalformed = errors.New("the message is malformed")

// fields calls f with each field of a message: its text or its number.
func fields(m *emptypb.Empty, f func(n protowire.Number, text string, number uint64)) error {
	for b := []byte(m.ProtoReflect().GetUnknown()); len(b) > 0; {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return errMalformed
		}
		b = b[size:]
		var text []byte
		var number uint64
		switch kind {
		case protowire.BytesType:
			text, size = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			number, size = protowire.ConsumeVarint(b)
		default:
			size = protowire.ConsumeFieldValue(n, kind, b)
		}
		if size < 0 {
			return errMalformed
		}
		f(n, string(text), number)
		b = b[size:]
	}
	return nil
}
