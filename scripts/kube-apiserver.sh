#!/bin/sh
# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
#
# Builds kube-apiserver v1.31.0 from the Go proxy for the slow tests of runtime/provider/kubernetes, which also need etcd
# (apt-get install etcd-server):
#
#   scripts/kube-apiserver.sh /tmp/kube-apiserver
#   KUBE_APISERVER=/tmp/kube-apiserver go test -run RealAPIServer ./runtime/provider/kubernetes
set -eu
[ $# = 1 ] || { echo "usage: $0 PATH" >&2; exit 2; }
out=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >main.go <<'EOF'
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
EOF
# Kubernetes builds with copies of these modules in its repository; the proxy has them as modules.
{
  printf 'module apiserver\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v1.31.0\n\n'
  for module in api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider \
    cluster-bootstrap code-generator component-base component-helpers controller-manager cri-api cri-client \
    csi-translation-lib dynamic-resource-allocation endpointslice kms kube-aggregator kube-controller-manager \
    kube-proxy kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver \
    sample-cli-plugin sample-controller; do
    echo "replace k8s.io/$module => k8s.io/$module v0.31.0"
  done
} >go.mod
go mod tidy
go build -trimpath '-ldflags=-s -w' -o "$out" .
