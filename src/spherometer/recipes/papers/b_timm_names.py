"""Vision transformers of timm 1.0: the text of paper B does not name its 181, these are as many, family by family."""

from __future__ import annotations

PAPER = tuple(
    """
vit_tiny_patch16_224 vit_tiny_patch16_384 vit_small_patch32_224 vit_small_patch32_384 vit_small_patch16_224
vit_small_patch16_384 vit_base_patch32_224 vit_base_patch32_384 vit_base_patch16_224 vit_base_patch16_384
vit_base_patch8_224 vit_large_patch16_224 vit_large_patch16_384 vit_base_patch16_224_miil vit_medium_patch16_gap_256
vit_medium_patch16_gap_384 vit_base_patch32_clip_224 vit_base_patch32_clip_384 vit_base_patch16_clip_224
vit_base_patch16_clip_384 vit_base_patch16_rpn_224 vit_small_patch16_36x1_224 vit_small_patch16_18x2_224
vit_medium_patch16_reg4_gap_256 vit_mediumd_patch16_reg4_gap_256 vit_betwixt_patch16_reg4_gap_256
vit_tiny_r_s16_p8_224 vit_tiny_r_s16_p8_384 vit_small_r26_s32_224 vit_small_r26_s32_384 flexivit_small flexivit_base
flexivit_large
deit_tiny_patch16_224 deit_small_patch16_224 deit_base_patch16_224 deit_base_patch16_384
deit_tiny_distilled_patch16_224 deit_small_distilled_patch16_224 deit_base_distilled_patch16_224
deit_base_distilled_patch16_384 deit3_small_patch16_224 deit3_small_patch16_384 deit3_medium_patch16_224
deit3_base_patch16_224 deit3_base_patch16_384 deit3_large_patch16_224
beit_base_patch16_224 beit_base_patch16_384 beit_large_patch16_224 beitv2_base_patch16_224 beitv2_large_patch16_224
cait_xxs24_224 cait_xxs24_384 cait_xxs36_224 cait_xxs36_384 cait_xs24_384 cait_s24_224
xcit_nano_12_p16_224 xcit_nano_12_p16_384 xcit_tiny_12_p16_224 xcit_tiny_12_p16_384 xcit_small_12_p16_224
xcit_small_12_p16_384 xcit_tiny_24_p16_224 xcit_tiny_24_p16_384 xcit_small_24_p16_224 xcit_medium_24_p16_224
xcit_nano_12_p8_224 xcit_tiny_12_p8_224 xcit_small_12_p8_224 xcit_tiny_24_p8_224 xcit_small_24_p8_224
pit_b_224 pit_s_224 pit_xs_224 pit_ti_224 pit_b_distilled_224 pit_s_distilled_224 pit_xs_distilled_224
pit_ti_distilled_224
levit_128s levit_128 levit_192 levit_256 levit_384
mobilevit_xxs mobilevit_xs mobilevit_s mobilevitv2_050 mobilevitv2_075 mobilevitv2_100 mobilevitv2_125 mobilevitv2_150
mobilevitv2_175 mobilevitv2_200
fastvit_t8 fastvit_t12 fastvit_s12 fastvit_sa12 fastvit_sa24 fastvit_sa36 fastvit_ma36
efficientformer_l1 efficientformer_l3 efficientformer_l7 efficientformerv2_s0 efficientformerv2_s1
efficientformerv2_s2 efficientformerv2_l efficientvit_b0 efficientvit_b1 efficientvit_b2 efficientvit_b3
efficientvit_m0 efficientvit_m1 efficientvit_m2 efficientvit_m3 efficientvit_m4 efficientvit_m5
tiny_vit_5m_224 tiny_vit_11m_224 tiny_vit_21m_224 tiny_vit_21m_384
swin_tiny_patch4_window7_224 swin_small_patch4_window7_224 swin_base_patch4_window7_224 swin_base_patch4_window12_384
swin_large_patch4_window7_224 swin_s3_tiny_224 swin_s3_small_224 swin_s3_base_224 swinv2_tiny_window16_256
swinv2_tiny_window8_256 swinv2_small_window16_256 swinv2_small_window8_256 swinv2_base_window16_256
swinv2_base_window8_256
crossvit_tiny_240 crossvit_small_240 crossvit_base_240 crossvit_9_240 crossvit_15_240 crossvit_18_240
crossvit_9_dagger_240 crossvit_15_dagger_240 crossvit_18_dagger_240
coat_tiny coat_mini coat_small coat_lite_tiny coat_lite_mini coat_lite_small coat_lite_medium coatnet_nano_rw_224
coatnet_0_rw_224 coatnet_1_rw_224
convit_tiny convit_small convit_base twins_pcpvt_small twins_pcpvt_base twins_pcpvt_large twins_svt_small
twins_svt_base twins_svt_large visformer_tiny visformer_small mvitv2_tiny mvitv2_small mvitv2_base gcvit_xxtiny
gcvit_xtiny gcvit_tiny gcvit_small gcvit_base davit_tiny davit_small davit_base edgenext_xx_small edgenext_x_small
""".split()
)
LAPTOP = tuple(
    """
test_vit test_vit2 test_vit3 test_vit4 vit_tiny_patch16_224 deit_tiny_distilled_patch16_224 xcit_nano_12_p16_224
pit_ti_224 mobilevit_xxs mobilevitv2_050 fastvit_t8 efficientformerv2_s0 edgenext_xx_small
""".split()
)
SMOKE = ("test_vit", "test_vit2", "test_vit3", "test_vit4")
FAMILIES = (
    *(
        "mobilevit",
        "fastvit",
        "test_vit",
        "tiny_vit",
        "vit",
        "flexivit",
        "deit",
        "beit",
        "cait",
        "xcit",
        "pit",
        "levit",
    ),
    *("efficient", "swin", "crossvit", "coat", "digits"),
)  # by which a name starts; mobile and fast ones are the outliers of the paper
