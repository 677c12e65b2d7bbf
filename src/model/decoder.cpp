#include "model/decoder.h"

#include "model/block.h"

namespace tidepool {

void run_decoder(const Model& model, const Math& math, ForwardPass& pass) {
  const LayerTable& table = model.layer_table();
  for (size_t layer = table.decoder_begin; layer < table.layers.size(); ++layer) {
    if (layer > table.decoder_begin) enter_layer(model, math, layer, pass);
    collect_tap(model, math, layer, pass);
    run_layer(model, math, layer, pass);
  }
  settle_streams(math, model.hyper_connection(), pass);
}

}  // namespace tidepool
