package main

import (
	"net/http"

	"github.com/podvol/podvol/examples/nodehttp"
	"github.com/podvol/podvol/examples/nodehttp/nodepage"
	"github.com/podvol/podvol/volume/volumemanager"
)

// newPage shows the node's volumes to people, until stop: a page at the handler's root, and beside
// it what tells the page of changes. Events are the API server's to show.
func newPage(node string, volumes *volumemanager.Manager) (pages http.Handler, stop func()) {
	watch, mux := new(nodehttp.Watch), http.NewServeMux()
	mux.Handle("GET /{$}", nodepage.New(nodepage.Config{Node: node, Rows: volumes.Explain, Version: watch.Version}))
	mux.Handle("GET /watch", nodehttp.WatchPage("/watch", watch, volumes.Explain).Handler)
	return mux, volumes.Subscribe(watch.Changed)
}
