// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package network

import (
	"encoding/json"
	"net"
	"net/http"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
)

// Serve serves the interface for tests on a listener: a POST to /proxies/worker with the JSON object {"enabled": bool},
// as toxiproxy's own interface has it. That interface listens on a port which its caller chooses, and which another
// process may have taken by then. Serve does not return before the listener is closed.
func (n *Network) Serve(l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /proxies/worker", func(w http.ResponseWriter, r *http.Request) {
		var wanted struct {
			Enabled *bool `json:"enabled"`
		}
		if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil || wanted.Enabled == nil {
			http.Error(w, `the body must be {"enabled": true} or {"enabled": false}`, http.StatusBadRequest)
			return
		}
		same := &toxiproxy.Proxy{Listen: n.proxy.Listen, Upstream: n.proxy.Upstream, Enabled: *wanted.Enabled}
		if err := n.proxy.Update(same); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	return (&http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}).Serve(l)
}
