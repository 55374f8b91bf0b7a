// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package catalogue holds every fact about an operator, a dtype or an argument kind once. Other packages read its
// tables, or files that catalogue/gen writes from them. It imports only the standard library.
package catalogue
